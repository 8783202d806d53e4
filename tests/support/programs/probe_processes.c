/* Acts on other processes and on their sockets. */
#include "probe.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

static int send_signal(int count, char **argument)
{
    return print_result(kill(atoi(argument[0]), count > 1 ? atoi(argument[1]) : SIGTERM));
}

static int pidfd_signal(int count, char **argument)
{
    (void)count;
    long fd = syscall(SYS_pidfd_open, atoi(argument[0]), 0);
    return fd < 0 ? refused() : print_result(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
}

static int trace(int count, char **argument)
{
    (void)count;
    return print_result(ptrace(PTRACE_SEIZE, atoi(argument[0]), NULL, NULL));
}

/* Reads eight bytes at ADDRESS of another process: "vm-read PID ADDRESS". */
static int vm_read(int count, char **argument)
{
    (void)count;
    char room[8];
    struct iovec here = {room, sizeof room};
    struct iovec there = {(void *)strtoull(argument[1], NULL, 0), sizeof room};
    return print_result(process_vm_readv(atoi(argument[0]), &here, 1, &there, 1, 0));
}

/* "proc PID NAME": opens /proc/PID/NAME of another process and reads one byte. */
static int proc_file(int count, char **argument)
{
    (void)count;
    char path[128];
    snprintf(path, sizeof path, "/proc/%s/%s", argument[0], argument[1]);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return refused();
    if (strcmp(argument[1], "mem") == 0)
        return ok(NULL); /* address 0 is not mapped, but an open descriptor is already enough */
    char byte;
    return print_result(read(fd, &byte, 1));
}

static int connect_to(const struct sockaddr_un *address, socklen_t length, int type)
{
    int fd = socket(AF_UNIX, type, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)address, length) < 0)
        return refused();
    return print_result(write(fd, "probe", 5));
}

static int abstract(int count, char **argument)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(argument[0]);
    memcpy(address.sun_path + 1, argument[0], length);
    return connect_to(&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length),
                      count > 1 && strcmp(argument[1], "datagram") == 0 ? SOCK_DGRAM : SOCK_STREAM);
}

static int pathname(int count, char **argument)
{
    (void)count;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argument[0], sizeof address.sun_path - 1);
    return connect_to(&address, sizeof address, SOCK_STREAM);
}

/* socketpair(2) needs no socket(2), and one end can still be redirected to a name:
   "pair-send TYPE PATH" by an address in the message, "pair-connect TYPE PATH" by connect(2). */
static int pair_to(char **argument, int reconnect)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argument[1], sizeof address.sun_path - 1);
    int pair[2];
    if (socketpair(AF_UNIX, atoi(argument[0]), 0, pair) < 0)
        return refused();
    if (!reconnect)
        return print_result(
            sendto(pair[0], "probe", 5, 0, (struct sockaddr *)&address, sizeof address));
    if (connect(pair[0], (struct sockaddr *)&address, sizeof address) < 0)
        return refused();
    return print_result(write(pair[0], "probe", 5));
}

static int pair_send(int count, char **argument) { (void)count; return pair_to(argument, 0); }
static int pair_connect(int count, char **argument) { (void)count; return pair_to(argument, 1); }

/* "linger FILE": leaves a process behind, by a new session and a double fork. It ignores all
   signals that can be ignored, writes its pid to FILE and waits for ever. */
static int linger(int count, char **argument)
{
    (void)count;
    int ready[2];
    if (pipe(ready) < 0)
        return refused();
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            for (int signal_number = 1; signal_number < NSIG; signal_number++)
                signal(signal_number, SIG_IGN);
            int fd = open(argument[0], O_WRONLY | O_CREAT | O_TRUNC, 0644);
            dprintf(fd, "%d\n", getpid());
            close(fd);
            close(ready[0]);
            close(ready[1]);
            int silence = open("/dev/null", O_RDWR);
            dup2(silence, 0), dup2(silence, 1), dup2(silence, 2);
            for (;;)
                pause();
        }
        _exit(0);
    }
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) < 0) /* end of file: the grandchild has written its pid */
        return refused();
    return ok("left");
}

static int die_by(int count, char **argument)
{
    (void)count;
    signal(atoi(argument[0]), SIG_DFL);
    raise(atoi(argument[0]));
    return ok("alive");
}

static volatile sig_atomic_t caught;
static void catch(int signal_number) { caught = signal_number; }

/* Prints "ready", waits for a signal, prints its number. */
static int await_signal(int count, char **argument)
{
    (void)count, (void)argument;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    const int watched[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGWINCH};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        signal(watched[i], catch);
    puts("ready");
    sigsuspend(&before);
    char text[16];
    snprintf(text, sizeof text, "%d", (int)caught);
    return ok(text);
}

const struct act process_acts[] = {
    {"signal", 1, send_signal},
    {"pidfd-signal", 1, pidfd_signal},
    {"trace", 1, trace},
    {"vm-read", 2, vm_read},
    {"proc", 2, proc_file},
    {"abstract", 1, abstract},
    {"pathname", 1, pathname},
    {"pair-send", 2, pair_send},
    {"pair-connect", 2, pair_connect},
    {"linger", 1, linger},
    {"die-by", 1, die_by},
    {"await-signal", 0, await_signal},
    {NULL, 0, NULL},
};
