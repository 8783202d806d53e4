/* Acts that execute a program. Each runs in a child, so that the test sees that the caller lives
   on. The answer is the errno of the child, "ok STATUS" if a program ended, or "killed SIGNAL". */
#include "probe.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

/* The child writes its errno into shared memory and sets a flag. */
static int *failure;

static void failed(void)
{
    *failure = errno ? errno : -1;
    _exit(120);
}

static int outcome_of(pid_t child)
{
    int status;
    if (child < 0)
        return refused();
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return refused();
    if (WIFSIGNALED(status)) {
        printf("killed %d\n", WTERMSIG(status));
        return 1;
    }
    if (*failure) {
        errno = *failure;
        return refused();
    }
    printf("ok %d\n", WEXITSTATUS(status));
    return 0;
}

static int in_child(void (*way)(int count, char **argument), int count, char **argument)
{
    failure =
        mmap(NULL, sizeof *failure, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        way(count, argument);
        failed();
    }
    return outcome_of(child);
}

#define WAY(name)                                                                                 \
    static void name##_way(int count, char **argument);                                           \
    static int name(int count, char **argument)                                                   \
    {                                                                                             \
        return in_child(name##_way, count, argument);                                             \
    }                                                                                             \
    static void name##_way(int count, char **argument)

/* PATH ARGUMENT…: the raw system call, without an environment. */
WAY(raw)
{
    (void)count;
    char *none[] = {NULL};
    syscall(SYS_execve, argument[0], argument, none);
}

WAY(plain)
{
    (void)count;
    execv(argument[0], argument);
}

/* PATH ARGV0…: with another argv[0]. */
WAY(called)
{
    (void)count;
    execv(argument[0], argument + 1);
}

WAY(by_memfd)
{
    (void)count;
    char block[65536];
    ssize_t got;
    int from = open(argument[0], O_RDONLY), to = (int)syscall(SYS_memfd_create, "program", 0);
    while ((got = read(from, block, sizeof block)) > 0)
        if (write(to, block, (size_t)got) != got)
            return;
    /* Opened again for reading, with no writer left: else exec fails with ETXTBSY. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    int reading = open(path, O_RDONLY);
    if (reading < 0)
        return;
    close(to);
    syscall(SYS_execveat, reading, "", argument, environ, AT_EMPTY_PATH);
}

WAY(by_descriptor)
{
    (void)count;
    fexecve(open(argument[0], O_RDONLY), argument, environ);
}

/* PREFIX PATH ARGUMENT…: by the path of a descriptor. */
WAY(by_link)
{
    (void)count;
    char path[128];
    snprintf(path, sizeof path, "%s/%d", argument[0], open(argument[1], O_RDONLY));
    execv(path, argument + 1);
}

/* DIRECTORY NAME ARGUMENT… */
WAY(at)
{
    (void)count;
    int directory = open(argument[0], O_PATH | O_DIRECTORY);
    syscall(SYS_execveat, directory, argument[1], argument + 1, environ, 0);
}

static int by_vfork(int count, char **argument)
{
    (void)count;
    failure =
        mmap(NULL, sizeof *failure, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = vfork();
    if (child == 0) {
        execv(argument[0], argument);
        failed();
    }
    return outcome_of(child);
}

static int by_spawn(int count, char **argument)
{
    (void)count;
    pid_t child;
    failure =
        mmap(NULL, sizeof *failure, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    errno = posix_spawn(&child, argument[0], NULL, NULL, argument, environ);
    return errno ? refused() : outcome_of(child);
}

static void *execute(void *argument)
{
    char **words = argument;
    execv(words[0], words);
    failed();
    return NULL;
}

WAY(by_thread)
{
    (void)count;
    pthread_t thread;
    if (pthread_create(&thread, NULL, execute, argument) == 0)
        pthread_join(thread, NULL);
}

/* The first thread has ended, so the process id is that of a dead thread. */
WAY(by_widow)
{
    (void)count;
    pthread_t thread;
    if (pthread_create(&thread, NULL, execute, argument) == 0)
        pthread_exit(NULL);
}

static pthread_barrier_t together;

static void *execute_together(void *argument)
{
    char **words = argument;
    pthread_barrier_wait(&together);
    execv(words[0], words);
    *failure = errno;
    pthread_barrier_wait(&together); /* a thread that fails lets the others try */
    return NULL;
}

WAY(by_nine)
{
    (void)count;
    pthread_t threads[9];
    pthread_barrier_init(&together, NULL, 9);
    for (int i = 0; i < 9; i++)
        if (pthread_create(&threads[i], NULL, execute_together, argument) != 0)
            return;
    for (int i = 0; i < 9; i++)
        pthread_join(threads[i], NULL);
    errno = *failure;
}

/* BAD MISSING GOOD ARGUMENT…: two of three threads execute a denied and a missing program. The
   first one executes the allowed program. */
static void *execute_one(void *argument)
{
    char **words = argument;
    pthread_barrier_wait(&together);
    for (int i = 0; i < 50; i++)
        execv(words[0], words);
    return NULL;
}

WAY(by_mixed)
{
    (void)count;
    pthread_t threads[3];
    char *bad[] = {argument[0], NULL}, *missing[] = {argument[1], NULL};
    pthread_barrier_init(&together, NULL, 3);
    pthread_create(&threads[0], NULL, execute_one, bad);
    pthread_create(&threads[1], NULL, execute_one, missing);
    pthread_create(&threads[2], NULL, execute_one, argument + 2);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

WAY(undumpable)
{
    (void)count;
    if (prctl(PR_SET_DUMPABLE, 0) == 0)
        execv(argument[0], argument);
}

WAY(without_argv)
{
    (void)count;
    syscall(SYS_execve, argument[0], NULL, environ);
}

WAY(with_empty_argv)
{
    (void)count;
    char *none[] = {NULL};
    syscall(SYS_execve, argument[0], none, environ);
}

/* "path", "argv", "string", "end" PATH: an invalid pointer. */
WAY(wrong_pointer)
{
    (void)count;
    char *nowhere = (char *)8, *words[] = {argument[1], nowhere, NULL};
    long page = sysconf(_SC_PAGESIZE);
    char **edge = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    munmap((char *)edge + page, (size_t)page);
    char **last = (char **)((char *)edge + page) - 1; /* a list that ends at an unmapped page */
    *last = argument[1];
    switch (argument[0][0]) {
    case 'p':
        syscall(SYS_execve, nowhere, argument, environ);
        return;
    case 'a':
        syscall(SYS_execve, argument[1], nowhere, environ);
        return;
    case 's':
        syscall(SYS_execve, argument[1], words, environ);
        return;
    default:
        syscall(SYS_execve, argument[1], last, environ);
    }
}

/* PATH COUNT LENGTH: COUNT arguments of LENGTH bytes. */
WAY(large)
{
    (void)count;
    long many = atol(argument[1]), length = atol(argument[2]);
    char *word = malloc((size_t)length + 1), **words = calloc((size_t)many + 2, sizeof *words);
    memset(word, 'x', (size_t)length);
    word[length] = 0;
    words[0] = argument[0];
    for (long i = 1; i <= many; i++)
        words[i] = word;
    execve(argument[0], words, environ);
}

/* PATH LENGTH: the path, padded with slashes. */
WAY(long_path)
{
    (void)count;
    size_t length = (size_t)atol(argument[1]), own = strlen(argument[0]);
    char *path = malloc(length + 1);
    memset(path, '/', length);
    memcpy(path + length - own, argument[0], own + 1);
    execv(path, argument);
}

/* DIRECTORY PATH: the working directory is removed first. PATH may be relative. */
WAY(in_removed)
{
    (void)count;
    if (chdir(argument[0]) == 0 && rmdir(argument[0]) == 0)
        execv(argument[1], argument + 1);
}

/* The parent traces the caller, as strace does. */
static int under_tracer(int count, char **argument)
{
    (void)count;
    int status;
    failure =
        mmap(NULL, sizeof *failure, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0) {
            raise(SIGSTOP);
            execv(argument[0], argument);
        }
        failed();
    }
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        int stop = WSTOPSIG(status);
        int passed = stop == SIGSTOP || stop == SIGTRAP ? 0 : stop;
        ptrace(PTRACE_CONT, child, NULL, (void *)(long)passed);
    }
    if (*failure) {
        errno = *failure;
        return refused();
    }
    printf("ok %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return 0;
}

/* ROOT PATH ARGUMENT…: in new namespaces, and with another root if ROOT is not "/". */
WAY(in_namespaces)
{
    (void)count;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return;
    if (strcmp(argument[0], "/") != 0 && (chroot(argument[0]) < 0 || chdir("/") < 0))
        return;
    execv(argument[1], argument + 1);
}

/* By the system call numbers of another architecture. */
WAY(foreign)
{
#ifdef __x86_64__
    (void)count;
    if (argument[0][0] == 'x') {
        syscall(0x40000000 | 520, argument[1], argument + 1, environ);
        return;
    }
    size_t room = 4096;
    char *low = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT,
                     -1, 0);
    strcpy(low, argument[1]);
    unsigned *words = (unsigned *)(low + room / 2);
    words[0] = (unsigned)(size_t)low;
    words[1] = 0;
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(11L), "b"(low), "c"(words), "d"(words + 1)
                     : "memory");
    errno = (int)-result;
#else
    (void)count, (void)argument;
    errno = ENOSYS;
#endif
}

/* ARGUMENT…: this program again, as /proc/self/exe. */
WAY(self)
{
    char *words[count + 2];
    words[0] = "probe";
    memcpy(words + 1, argument, (size_t)count * sizeof *words);
    words[count + 1] = NULL;
    execv("/proc/self/exe", words);
}

/* SEED ROUNDS: calls with random arguments. Some are valid: they execute "probe" with an unknown
   act. */
static unsigned long long state;

static unsigned long long next_number(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void noise_once(char *room, char *self)
{
    void *places[] = {NULL, (void *)8, room, room + 4090, room + 4096, room + 8191, (void *)-1L,
                      (void *)-4096L, (void *)(1UL << 47), self, &places, environ,
                      (void *)next_number()};
    size_t most = sizeof places / sizeof *places;
    for (int i = 0; i < 64; i++)
        ((unsigned long long *)room)[next_number() % 1024] =
            next_number() % 3 ? (unsigned long long)(size_t)places[next_number() % most]
                              : next_number();
    if (next_number() % 4 == 0)
        snprintf(room, 64, "/proc/self/fd/%d", (int)(next_number() % 8));
    long descriptor = next_number() % 3   ? (long)(next_number() % 6) - 1
                      : next_number() % 2 ? AT_FDCWD
                                          : (long)next_number();
    if (next_number() % 2)
        syscall(SYS_execve, places[next_number() % most], places[next_number() % most],
                places[next_number() % most]);
    else
        syscall(SYS_execveat, descriptor, next_number() % 3 ? places[next_number() % most] : "",
                places[next_number() % most], places[next_number() % most],
                next_number() % 2   ? next_number()
                : next_number() % 2 ? AT_EMPTY_PATH
                                    : AT_SYMLINK_NOFOLLOW);
}

static int noise(int count, char **argument)
{
    (void)count;
    long rounds = atol(argument[1]), killed = 0;
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return refused();
    self[length] = 0;
    char *room = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(room + 8192, 4096);
    open(self, O_RDONLY), open("/", O_PATH), memfd_create("noise", 0);
    for (long round = 0; round < rounds; round += 50) {
        pid_t child = fork();
        if (child == 0) {
            state = strtoull(argument[0], NULL, 0) * 2654435761u + (unsigned long long)round + 1;
            close(1), close(2);
            for (int i = 0; i < 50; i++)
                noise_once(room, self);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child)
            return refused();
        killed += WIFSIGNALED(status);
    }
    printf("ok %ld killed\n", killed);
    return 0;
}

const struct act exec_acts[] = {
    {"exec", 1, plain},
    {"exec-raw", 1, raw},
    {"exec-called", 2, called},
    {"exec-memfd", 1, by_memfd},
    {"exec-descriptor", 1, by_descriptor},
    {"exec-link", 2, by_link},
    {"exec-at", 2, at},
    {"exec-vfork", 1, by_vfork},
    {"exec-spawn", 1, by_spawn},
    {"exec-thread", 1, by_thread},
    {"exec-widow", 1, by_widow},
    {"exec-nine", 1, by_nine},
    {"exec-mixed", 3, by_mixed},
    {"exec-undumpable", 1, undumpable},
    {"exec-no-argv", 1, without_argv},
    {"exec-empty-argv", 1, with_empty_argv},
    {"exec-wrong", 2, wrong_pointer},
    {"exec-large", 3, large},
    {"exec-long-path", 2, long_path},
    {"exec-removed", 2, in_removed},
    {"exec-traced", 1, under_tracer},
    {"exec-namespaces", 2, in_namespaces},
    {"exec-foreign", 2, foreign},
    {"exec-self", 1, self},
    {"exec-noise", 2, noise},
    {NULL, 0, NULL},
};
