/* The limit of the exec gate. It holds every exec, reads the file and the arguments, traces the
   process and compares both again before the program runs. It does nothing else.

     gate PROGRAM [ARGUMENT…]

   It has no rules, no journal, no Landlock and no other filter, and one process at a time. No gate
   that holds an exec by seccomp and verifies it at the exec stop can be faster. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/ptrace.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, SEIZE = 0x4206, INTERRUPT = 0x4207, EXEC_STOP = 4 };
enum { TRACE_EXEC = 1 << 4, EXIT_KILL = 1 << 20 };

extern long ptrace(int request, ...);

static int listener;

static int fail(const char *what)
{
    perror(what);
    exit(125);
}

/* Reads from an address to the end of its page. */
static size_t read_page(pid_t pid, uint64_t address, char *page)
{
    size_t length = PAGE - address % PAGE;
    struct iovec here = {page, length}, there = {(void *)address, length};
    return process_vm_readv(pid, &here, 1, &there, 1, 0) < 0 ? 0 : length;
}

static int is_held(uint64_t id)
{
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

/* Holds one exec and lets it continue to the exec stop. Stores its file in `expected`. */
static void hold(struct stat *expected)
{
    struct seccomp_notif call;
    memset(&call, 0, sizeof call);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
        return;
    char path[PAGE], words[PAGE];
    read_page(call.pid, call.data.args[0], path);
    read_page(call.pid, call.data.args[1], words);
    int file = open(path, O_PATH | O_CLOEXEC);
    if (file < 0 || fstat(file, expected) != 0 || !is_held(call.id))
        fail("the file");
    close(file);
    struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    if (ptrace(SEIZE, call.pid, 0, TRACE_EXEC | EXIT_KILL) != 0 ||
        ptrace(INTERRUPT, call.pid, 0, 0) != 0)
        fail("ptrace");
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

/* At the exec stop: compares the file and the arguments. */
static void verify(pid_t pid, const struct stat *expected)
{
    char link[64], words[PAGE];
    struct stat found;
    struct ptrace_syscall_info facts;
    snprintf(link, sizeof link, "/proc/%d/exe", pid);
    ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof facts, &facts);
    if (stat(link, &found) != 0 || found.st_ino != expected->st_ino ||
        !read_page(pid, facts.stack_pointer, words))
        kill(pid, SIGKILL);
    ptrace(17 /* PTRACE_DETACH */, pid, 0, 0);
}

static void become(char **argv, int channel)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                          SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
                          &program);
    if (fd < 0 || write(channel, &fd, sizeof fd) != sizeof fd)
        fail("seccomp");
    execv(argv[0], argv);
    fail(argv[0]);
}

int main(int argc, char **argv)
{
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    int channel[2], theirs, status, signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    if (argc < 2 || signals < 0 || pipe2(channel, O_CLOEXEC) != 0)
        return fail("gate");
    pid_t command = fork();
    if (command == 0) {
        sigprocmask(SIG_UNBLOCK, &children, NULL);
        become(argv + 1, channel[1]);
    }
    if (read(channel[0], &theirs, sizeof theirs) != sizeof theirs)
        return fail("listener");
    int process = (int)syscall(SYS_pidfd_open, command, 0);
    listener = (int)syscall(SYS_pidfd_getfd, process, theirs, 0);
    if (listener < 0)
        return fail("pidfd_getfd");
    struct stat expected;
    struct pollfd ready[] = {{signals, POLLIN, 0}, {listener, POLLIN, 0}};
    for (;;) {
        if (poll(ready, 2, -1) < 0)
            return fail("poll");
        if (ready[1].revents & POLLIN)
            hold(&expected);
        if (!ready[0].revents)
            continue;
        struct signalfd_siginfo arrival;
        (void)!read(signals, &arrival, sizeof arrival);
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0;) {
            if (WIFSTOPPED(status) && status >> 16 == EXEC_STOP)
                verify(pid, &expected);
            else if (pid == command && !WIFSTOPPED(status))
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    }
}
