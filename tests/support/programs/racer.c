/* Executes a program in a loop. Meanwhile its path, its arguments or its file change between two
   values as fast as possible:

     racer thread|clone|shared|mem|vm-write  argv|path  CALLS PROGRAM ONE OTHER
     racer symlink|exchange CALLS PROGRAM ONE OTHER   (files that PROGRAM leads to, or is)
     racer rewrite CALLS PROGRAM ONE OTHER OFFSET     (bytes of PROGRAM itself)
     racer directory CALLS PROGRAM ONE OTHER          (working directories)
     racer alone CALLS PROGRAM ONE OTHER              (argv, by a thread, and no process stays)

   argv: PROGRAM is executed with one argument, ONE or OTHER. path: PROGRAM is ignored, ONE or
   OTHER is executed. Memory is changed by a thread of the caller (thread), a process that shares
   all memory (clone), a process that shares a page (shared), or a process that writes through
   /proc/PID/mem (mem) or process_vm_writev(2) (vm-write).

   At the end it prints the number of calls, of programs that ended, and of programs that were
   killed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { CALLS_OF_ONE = 8, ROOM = 4096 };

static const char *program, *values[2];
static char *flipped; /* the memory that changes, on a shared page */
static char *own;     /* and private memory that changes */
static long *calls;
static size_t length;

static void stop(const char *what)
{
    perror(what);
    exit(2);
}

/* Each of these functions makes one change. */
static void write_here(char *there, int which)
{
    for (size_t i = 0; i < length; i++)
        if (values[0][i] != values[1][i])
            ((volatile char *)there)[i] = values[which][i];
}

static int changing; /* a new thread may not have begun yet on a busy machine */

static void *change_own(void *unused)
{
    for (int which = 1;; which = !which) {
        write_here(own, which);
        __atomic_store_n(&changing, 1, __ATOMIC_RELAXED);
    }
    return unused;
}

static void *change_directory(void *unused)
{
    for (int which = 1;; which = !which)
        if (chdir(values[which]) < 0)
            stop("chdir");
    return unused;
}

static void swap_link(int which)
{
    char fresh[ROOM];
    snprintf(fresh, sizeof fresh, "%s.fresh", program);
    unlink(fresh);
    if (symlink(values[which], fresh) < 0 || rename(fresh, program) < 0)
        stop("symlink");
}

static void exchange(int which)
{
    (void)which;
    if (syscall(SYS_renameat2, AT_FDCWD, values[0], AT_FDCWD, values[1],
                2 /* RENAME_EXCHANGE */) < 0)
        stop("renameat2");
}

static long offset;

/* Opened each time: a file with a writer gives ETXTBSY. */
static void rewrite(int which)
{
    int fd = open(program, O_WRONLY | O_CLOEXEC);
    if (fd < 0 && errno == ETXTBSY)
        return;
    if (fd < 0 || pwrite(fd, values[which], length, offset) != (ssize_t)length)
        stop("rewrite");
    close(fd);
    for (volatile int pause = 0; pause < 2000; pause++)
        ;
}

static void share(int which)
{
    write_here(flipped, which);
}

/* Starts a process that makes changes for ever. */
static pid_t busy(void (*change)(int which))
{
    pid_t parent = getpid(), child = fork();
    if (child < 0)
        stop("fork");
    if (child > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    for (int which = 1;; which = !which)
        change(which);
}

static int by_path;

static void call(char *changing)
{
    char *words[] = {(char *)program, by_path ? "x" : changing, NULL};
    for (int i = 0; i < CALLS_OF_ONE; i++) {
        __atomic_add_fetch(calls, 1, __ATOMIC_RELAXED);
        syscall(SYS_execve, by_path ? changing : program, words, environ);
    }
    _exit(100);
}

static int call_own(void *unused)
{
    (void)unused;
    call(own);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    const char *who = argv[1];
    int in_memory = strcmp(argv[2], "argv") == 0 || strcmp(argv[2], "path") == 0;
    by_path = strcmp(argv[2], "path") == 0;
    argv += in_memory ? 3 : 2;
    long wanted = atol(argv[0]), ran = 0, killed = 0;
    program = argv[1], values[0] = argv[2], values[1] = argv[3];
    offset = argv[4] ? atol(argv[4]) : 0;
    length = strlen(values[0]);
    flipped = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    own = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    calls = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(flipped, values[0]);
    strcpy(own, values[0]);

    pid_t changer = 0;
    int is_thread = strcmp(who, "thread") == 0, is_clone = strcmp(who, "clone") == 0;
    int is_shared = strcmp(who, "shared") == 0, is_mem = strcmp(who, "mem") == 0;
    int is_vm = strcmp(who, "vm-write") == 0, is_directory = strcmp(who, "directory") == 0;
    if (is_shared)
        changer = busy(share);
    else if (strcmp(who, "symlink") == 0)
        changer = busy(swap_link);
    else if (strcmp(who, "exchange") == 0)
        changer = busy(exchange);
    else if (strcmp(who, "rewrite") == 0)
        changer = busy(rewrite);

    if (strcmp(who, "alone") == 0) {
        /* Meanwhile another process executes programs all the time. */
        if (fork() == 0)
            for (char *words[] = {(char *)program, (char *)values[0], NULL};;) {
                pid_t child = vfork();
                if (child == 0) {
                    execve(program, words, environ);
                    _exit(1);
                }
                waitpid(child, NULL, 0);
            }
        pthread_t thread;
        if (pthread_create(&thread, NULL, change_own, NULL) != 0)
            stop("pthread_create");
        while (!__atomic_load_n(&changing, __ATOMIC_RELAXED))
            sched_yield();
        call(own);
    }

    char *stack = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (__atomic_load_n(calls, __ATOMIC_RELAXED) < wanted) {
        pid_t child = is_clone ? clone(call_own, stack + (1 << 16), CLONE_VM | SIGCHLD, NULL)
                               : fork();
        if (child < 0)
            stop("fork");
        if (child == 0) {
            pthread_t thread;
            if ((is_thread && pthread_create(&thread, NULL, change_own, NULL) != 0) ||
                (is_directory && pthread_create(&thread, NULL, change_directory, NULL) != 0))
                _exit(101);
            call(is_shared ? flipped : own);
        }
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", child);
        int memory = is_mem ? open(path, O_WRONLY | O_CLOEXEC) : -1;
        struct iovec here = {(void *)values[0], length}, there = {own, length};
        int status;
        int options = is_mem || is_vm || is_clone ? WNOHANG : 0;
        for (int which = 1; waitpid(child, &status, options) == 0; which = !which) {
            here.iov_base = (void *)values[which];
            if (is_clone)
                for (int i = 0; i < 200; i++, which = !which)
                    write_here(own, which);
            else if (is_mem)
                (void)!pwrite(memory, values[which], length, (off_t)(size_t)own);
            else
                process_vm_writev(child, &here, 1, &there, 1, 0);
        }
        if (memory >= 0)
            close(memory);
        ran += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        killed += WIFSIGNALED(status);
    }
    if (changer) {
        kill(changer, SIGKILL);
        waitpid(changer, NULL, 0);
    }
    printf("calls %ld ran %ld killed %ld\n", *calls, ran, killed);
    return 0;
}
