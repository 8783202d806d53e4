/* Which instructions of a program run: steps through it, and through what it starts, until that becomes another program.

     step OUT PROGRAM [ARGUMENT…]

   Writes their addresses, each once, in the order in which they were first reached. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where a static program lies. */
enum { LOWEST = 0x400000, HIGHEST = 0x1000000, MOST_PROCESSES = 1 << 22 };
static char seen[HIGHEST - LOWEST], other_program[MOST_PROCESSES];

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    FILE *out = fopen(argv[1], "w");
    pid_t first = fork();
    if (first == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execv(argv[2], argv + 2);
        _exit(127);
    }
    int status, execs = 0, left = 0;
    if (!out || waitpid(first, &status, 0) != first)
        return 1;
    long events = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    ptrace(PTRACE_SETOPTIONS, first, 0, events);
    ptrace(PTRACE_CONT, first, 0, 0);
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (pid == first)
                left = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int signal = WSTOPSIG(status), event = status >> 16;
        /* The first is the program itself. */
        if (event == PTRACE_EVENT_EXEC && execs++ > 0)
            other_program[pid] = 1;
        if (signal == SIGTRAP && !event) {
            long at = ptrace(PTRACE_PEEKUSER, pid, offsetof(struct user_regs_struct, rip), 0);
            if (at >= LOWEST && at < HIGHEST && !seen[at - LOWEST]) {
                seen[at - LOWEST] = 1;
                fprintf(out, "%lx\n", at);
            }
        }
        int ours = event || signal == SIGTRAP || signal == SIGSTOP;
        ptrace(execs && !other_program[pid] ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, 0, ours ? 0 : signal);
    }
    fclose(out);
    return left;
}
