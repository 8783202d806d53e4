/* Acts that test the system call filter. */
#include "probe.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static long number(const char *text) { return (long)strtoull(text, NULL, 0); }

/* "syscall NUMBER [A B C D E F]", raw. */
static int raw(int count, char **argument)
{
    long value[7] = {0};
    for (int i = 0; i < count && i < 7; i++)
        value[i] = number(argument[i]);
    return print_result(
        syscall(value[0], value[1], value[2], value[3], value[4], value[5], value[6]));
}

/* The same call through x32: the number has bit 30, the architecture value stays x86_64. */
static int x32(int count, char **argument)
{
    (void)count;
    return print_result(syscall(number(argument[0]) | 0x40000000L, 0, 0, 0, 0, 0, 0));
}

/* The same call through the i386 entry. Addresses do not fit, so only numbers are passed. */
static int int80(int count, char **argument)
{
#ifdef __x86_64__
    long result = number(argument[0]);
    long first = count > 1 ? number(argument[1]) : 0;
    __asm__ volatile("int $0x80" : "+a"(result) : "b"(first), "c"(0L), "d"(0L), "S"(0L), "D"(0L)
                     : "memory", "r8", "r9", "r10", "r11");
    if ((int)result < 0) {
        errno = -(int)result;
        return refused();
    }
    return ok(NULL);
#else
    (void)count, (void)argument;
    errno = ENOSYS;
    return refused();
#endif
}

static int end_child(long child)
{
    if (child == 0)
        _exit(0);
    if (child < 0)
        return refused();
    waitpid((pid_t)child, NULL, __WALL);
    return ok(NULL);
}

/* "clone FLAGS": a fork with extra flags, for example for new namespaces. */
static int clone_flags(int count, char **argument)
{
    (void)count;
    return end_child(syscall(SYS_clone, number(argument[0]) | SIGCHLD, 0, 0, 0, 0));
}

static int clone3_flags(int count, char **argument)
{
    (void)count;
    struct clone_args arguments = {.flags = (uint64_t)number(argument[0]), .exit_signal = SIGCHLD};
    return end_child(syscall(SYS_clone3, &arguments, sizeof arguments));
}

/* "tiocsti COMMAND": makes a new controlling terminal, then calls TIOCSTI on it. "ok typed"
   means that the byte arrived as if it was typed. COMMAND may have bits above the 32 that the
   kernel reads. */
static int tiocsti(int count, char **argument)
{
    (void)count;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        return refused();
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
    if (slave < 0)
        return refused();
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (ioctl(slave, TIOCSCTTY, 0) < 0)
            _exit(refused());
        if (syscall(SYS_ioctl, slave, number(argument[0]), "\n") < 0)
            _exit(refused());
        char typed = 0;
        _exit(read(slave, &typed, 1) == 1 && typed == '\n' ? ok("typed") : ok("lost"));
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

/* "ioctl COMMAND" on a pty slave: shows only whether the filter answers before the driver. */
static int ioctl_on_terminal(int count, char **argument)
{
    (void)count;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (master < 0 || unlockpt(master) < 0)
        return refused();
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
    if (slave < 0)
        return refused();
    char room[64] = {0};
    return print_result(syscall(SYS_ioctl, slave, number(argument[0]), room));
}

static int make_socket(int count, char **argument)
{
    return print_result(socket((int)number(argument[0]),
                               count > 1 ? (int)number(argument[1]) : SOCK_STREAM,
                          count > 2 ? (int)number(argument[2]) : 0));
}

/* "socketpair FAMILY KIND" */
static int make_pair(int count, char **argument)
{
    (void)count;
    int ends[2];
    return print_result(socketpair((int)number(argument[0]), (int)number(argument[1]), 0, ends));
}

static int io_uring(int count, char **argument)
{
    (void)count, (void)argument;
    char parameters[256] = {0};
    return print_result(syscall(SYS_io_uring_setup, 4, parameters));
}

static void *in_thread(void *done)
{
    *(int *)done = 1;
    return NULL;
}

static int threads(int count, char **argument)
{
    (void)count, (void)argument;
    pthread_t thread[8];
    int done[8] = {0};
    for (int i = 0; i < 8; i++)
        if ((errno = pthread_create(&thread[i], NULL, in_thread, &done[i])))
            return refused();
    for (int i = 0; i < 8; i++)
        if (pthread_join(thread[i], NULL) || !done[i])
            return ok("lost");
    return ok("eight");
}

static int spawned(int count, char **argument)
{
    (void)count;
    pid_t child;
    if ((errno = posix_spawn(&child, argument[0], NULL, NULL, argument, environ)))
        return refused();
    int status;
    waitpid(child, &status, 0);
    return status == 0 ? ok("spawned") : ok("failed");
}

static int vforked(int count, char **argument)
{
    (void)count, (void)argument;
    pid_t child = vfork();
    if (child == 0)
        _exit(7);
    if (child < 0)
        return refused();
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status) == 7 ? ok("seven") : ok("lost");
}

/* A program that never had a path: Landlock cannot see it, but the filter still holds in it. */
static int memfd_execute(int count, char **argument)
{
    (void)count;
    int fd = memfd_create("probe", 0);
    int source = open(argument[0], O_RDONLY);
    if (fd < 0 || source < 0)
        return refused();
    char block[65536];
    for (ssize_t length; (length = read(source, block, sizeof block)) > 0;)
        if (write(fd, block, (size_t)length) != length)
            return refused();
    fexecve(fd, argument, environ);
    return refused();
}

const struct act syscall_acts[] = {
    {"syscall", 1, raw},
    {"x32", 1, x32},
    {"int80", 1, int80},
    {"clone", 1, clone_flags},
    {"clone3", 1, clone3_flags},
    {"tiocsti", 1, tiocsti},
    {"ioctl", 1, ioctl_on_terminal},
    {"socket", 1, make_socket},
    {"socketpair", 2, make_pair},
    {"io-uring", 0, io_uring},
    {"threads", 0, threads},
    {"posix-spawn", 1, spawned},
    {"vfork", 0, vforked},
    {"memfd-execute", 1, memfd_execute},
    {NULL, 0, NULL},
};
