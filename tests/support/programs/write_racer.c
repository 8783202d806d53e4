/* Makes and changes names in a loop. Meanwhile something that their meaning depends on changes as
   fast as possible between a free and a protected name.

     write_racer KIND CALLS
     write_racer KIND CALLS make|flip   (one half, for two runs side by side)

   thread, clone  one letter of the path in memory, by a thread, or by a process that shares memory
   how            the flags of openat2(2) in memory
   link           a symlink, by an exchange with another one
   relink         a symlink, which is removed and made again
   slow           the same for bind(2) alone, and the free name has a long way of symlinks
   exchange       the names of two directories
   descriptor     what a number means, by dup2(2)
   cwd            the working directory, by a thread that shares it
   killed         the caller itself: it is killed, or another program takes its thread id
   parts          with two runs only: one makes the objects of a repository, the other one the refs

   The working directory has the trees aclaude, agit/hooks and kept, and the same with a dot in the
   place of the first letter. At the end it prints the number of calls, of calls that succeeded, and
   of refused calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { DIRECTORY = 50, OBJECT = 51, STACK = 1 << 16, SLOW_LINKS = 16 };
enum { EXCHANGE = 2 /* RENAME_EXCHANGE */ };

/* A path that changes, the letter of it that does, and where the free name is. */
static struct place {
    struct sockaddr_un address; /* the path is in here, for bind(2) */
    int letter;
    const char *free;
} places[] = {
    {{AF_UNIX, "aclaude/n"}, 0, "aclaude/n"},
    {{AF_UNIX, "agit/hooks/pre-commit"}, 0, "agit/hooks/pre-commit"},
    {{AF_UNIX, "aenvrc"}, 0, "aenvrc"},
    {{AF_UNIX, "kept/aenvrc"}, 5, "kept/aenvrc"}, /* exists */
};
enum { KEPT = 3, PLACES = 4 };

/* What the threads and processes of a race share. */
static struct shared {
    long calls, made, refused, flips;
    int start;
    struct open_how how[3];
} *shared;

static int top; /* the working directory at the start */

static void stop(const char *what)
{
    perror(what);
    exit(2);
}

static void count(int result)
{
    __atomic_add_fetch(&shared->calls, 1, __ATOMIC_RELAXED);
    if (result >= 0)
        __atomic_add_fetch(&shared->made, 1, __ATOMIC_RELAXED);
    else if (errno == EACCES || errno == EROFS)
        __atomic_add_fetch(&shared->refused, 1, __ATOMIC_RELAXED);
}

/* The acts that make a name. Each returns -1 or another number. */
enum { OPEN, OPEN_HOW, MAKE_DIR, MAKE_NODE, SYMLINK, LINK, RENAME, BIND, MAKING_ACTS };

static int make(int act, int dir, const struct sockaddr_un *address)
{
    struct open_how how = {.flags = O_CREAT | O_WRONLY | O_CLOEXEC, .mode = 0600};
    const char *path = address->sun_path;
    int result = -1;
    switch (act) {
    case OPEN:
        result = openat(dir, path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        break;
    case OPEN_HOW:
        result = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
        break;
    case MAKE_DIR:
        return mkdirat(dir, path, 0700);
    case MAKE_NODE:
        return mknodat(dir, path, S_IFREG | 0600, 0);
    case SYMLINK:
        return symlinkat("seed", dir, path);
    case LINK:
        return linkat(top, "seed", dir, path, 0);
    case RENAME:
        mknodat(top, "moved", S_IFREG | 0600, 0);
        return renameat(top, "moved", dir, path);
    case BIND: {
        int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        result = bind(made, (const struct sockaddr *)address, sizeof *address);
        int error = errno;
        close(made);
        errno = error;
        return result;
    }
    }
    if (result >= 0)
        close(result);
    return result;
}

static void make_and_remove(long number, int dir, const struct sockaddr_un *address,
                            const char *free_name)
{
    int act = (int)(number % MAKING_ACTS);
    int result = make(dir == AT_FDCWD || act != BIND ? act : OPEN, dir, address);
    count(result);
    if (result >= 0 && unlinkat(top, free_name, 0) < 0 && errno == EISDIR)
        unlinkat(top, free_name, AT_REMOVEDIR);
}

/* The acts that change a file. */
static void change(long number, const char *path)
{
    int result = -1;
    switch (number % 9) {
    case 0:
        result = openat(AT_FDCWD, path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        if (result >= 0)
            close(result);
        break;
    case 1:
        result = fchmodat(AT_FDCWD, path, 0600 | (mode_t)(number & 070), 0);
        break;
    case 2:
        result = truncate(path, number & 15);
        break;
    case 3:
        result = utimensat(AT_FDCWD, path, NULL, 0);
        break;
    case 4:
        result = setxattr(path, "user.race", "x", 1, 0);
        break;
    case 5:
        result = unlinkat(AT_FDCWD, path, 0);
        break;
    case 6:
        result = renameat(AT_FDCWD, path, top, "taken");
        break;
    case 7:
        result = (int)syscall(SYS_renameat2, AT_FDCWD, path, top, "seed", EXCHANGE);
        break;
    case 8:
        result = linkat(AT_FDCWD, path, top, "linked", 0);
        if (result >= 0)
            unlinkat(top, "linked", 0);
        break;
    }
    count(result);
    mknodat(top, places[KEPT].free, S_IFREG | 0600, 0);
}

static void change_open(long number)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", OBJECT);
    switch (number % 6) {
    case 0:
        return count(fchmod(OBJECT, 0600 | (mode_t)(number & 070)));
    case 1:
        return count(fsetxattr(OBJECT, "user.race", "x", 1, 0));
    case 2:
        return count(futimens(OBJECT, NULL));
    case 3:
        return count(fchmodat(AT_FDCWD, link, 0600 | (mode_t)(number & 070), 0));
    case 4:
        return count(truncate(link, number & 15));
    case 5: {
        int fd = openat(AT_FDCWD, link, O_WRONLY | O_TRUNC | O_CLOEXEC);
        count(fd);
        if (fd >= 0)
            close(fd);
    }
    }
}

/* Each of these functions makes one change. */
static void flip_letter(int which)
{
    for (int i = 0; i < PLACES; i++)
        ((volatile char *)places[i].address.sun_path)[places[i].letter] = which ? '.' : 'a';
}

static void flip_how(int which)
{
    static const unsigned long long writing[] = {O_WRONLY | O_TRUNC, O_RDWR | O_CREAT,
                                                 O_RDONLY | O_CREAT};
    for (int i = 0; i < 3; i++)
        *(volatile __u64 *)&shared->how[i].flags = which ? writing[i] : O_RDONLY;
}

static void flip_names(const char *one, const char *other)
{
    syscall(SYS_renameat2, top, one, top, other, EXCHANGE);
}

static void flip_link(int which)
{
    flip_names(which ? "link" : "last", which ? "other" : "other-last");
}

static void flip_relink(int which)
{
    unlinkat(top, "link", 0);
    symlinkat(which ? ".claude" : "aclaude", top, "link");
}

static void flip_slow(int which)
{
    unlinkat(top, "link", 0);
    symlinkat(which ? ".claude" : "slow-0", top, "link");
}

/* The kernel walks for a millisecond from the first link to aclaude. */
static void make_slow_links(void)
{
    char target[4096], name[16], next[16];
    for (int i = 0; i < SLOW_LINKS; i++) {
        snprintf(name, sizeof name, "slow-%d", i);
        snprintf(next, sizeof next, "slow-%d", i + 1);
        for (size_t at = 0; at < 4000; at += 2)
            memcpy(target + at, "./", 2);
        strcpy(target + 4000, i + 1 < SLOW_LINKS ? next : "aclaude");
        symlinkat(target, top, name);
    }
}

static void flip_directories(int which)
{
    (void)which;
    flip_names("aclaude", ".claude");
}

static int numbers[2][2];

static void flip_numbers(int which)
{
    dup2(numbers[0][which], DIRECTORY);
    dup2(numbers[1][which], OBJECT);
}

static void flip_cwd(int which)
{
    if (fchdir(numbers[0][which]) < 0)
        stop("fchdir");
}

static void (*flip)(int which);

static void *flip_for_ever(void *unused)
{
    for (int which = 1;; which = !which) {
        flip(which);
        __atomic_add_fetch(&shared->flips, 1, __ATOMIC_RELAXED);
    }
    return unused;
}

static int flip_in_process(void *unused)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    flip_for_ever(unused);
    return 0;
}

static void start_flips(const char *kind)
{
    pthread_t thread;
    int shares = strcmp(kind, "clone") == 0;
    if (shares || flip == flip_link || flip == flip_relink || flip == flip_slow ||
        flip == flip_directories) {
        char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (clone(flip_in_process, stack + STACK, (shares ? CLONE_VM : 0) | SIGCHLD, NULL) < 0)
            stop("clone");
    } else if (pthread_create(&thread, NULL, flip_for_ever, NULL) != 0)
        stop("pthread_create");
    while (!__atomic_load_n(&shared->flips, __ATOMIC_RELAXED))
        sched_yield();
}

/* The caller waits in its call. Then it is killed, or another thread executes a program: the kernel
   gives it the number of the first thread. */
static long spins;

static void *take_over(void *unused)
{
    if (syscall(SYS_unshare, CLONE_FS) < 0 || fchdir(numbers[0][1]) < 0)
        _exit(3);
    __atomic_store_n(&shared->start, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&shared->start, __ATOMIC_ACQUIRE) != 2)
        ;
    for (volatile long i = 0; i < spins; i++)
        ;
    execl("/proc/self/exe", "write_racer", "pause", "0", NULL);
    _exit(4);
    return unused;
}

static void kill_caller(long number)
{
    spins = random() % 20000;
    shared->start = 0;
    pid_t child = fork();
    if (child < 0)
        stop("fork");
    if (child == 0) {
        pthread_t thread;
        if (fchdir(numbers[0][0]) < 0 ||
            (number % 2 && pthread_create(&thread, NULL, take_over, NULL) != 0))
            _exit(3);
        while (number % 2 && __atomic_load_n(&shared->start, __ATOMIC_ACQUIRE) != 1)
            sched_yield();
        __atomic_store_n(&shared->start, 2, __ATOMIC_RELEASE);
        int fd = openat(AT_FDCWD, "n", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (number % 2)
            pause();
        _exit(fd < 0);
    }
    if (number % 2 == 0) {
        while (__atomic_load_n(&shared->start, __ATOMIC_ACQUIRE) != 2)
            sched_yield();
        for (volatile long i = 0; i < spins; i++)
            ;
        kill(child, SIGKILL);
    }
    waitpid(child, NULL, 0);
    count(unlinkat(top, "aclaude/n", 0));
}

/* Two runs meet before each round: all have seen the number. */
static void meet(volatile long *met, long number)
{
    __atomic_add_fetch(met, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(met, __ATOMIC_ACQUIRE) < 2 * number)
        sched_yield();
}

static void make_parts(long wanted, int is_first)
{
    struct together {
        long met, directory;
    } *together;
    int fd = openat(top, "together", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *together) < 0)
        stop("together");
    together = mmap(NULL, sizeof *together, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char part[64], other[64], head[64];
    for (long i = 0; i < wanted; i++) {
        long number = __atomic_load_n(&together->directory, __ATOMIC_ACQUIRE);
        snprintf(part, sizeof part, "d%ld", number);
        snprintf(head, sizeof head, "d%ld/HEAD", number);
        if (is_first && mkdirat(top, part, 0700) == 0)
            close(openat(top, head, O_CREAT | O_WRONLY, 0600));
        meet(&together->met, 3 * i + 1);
        snprintf(part, sizeof part, "d%ld/%s", number, is_first ? "objects" : "refs");
        snprintf(other, sizeof other, "d%ld/%s", number, is_first ? "refs" : "objects");
        count(mkdirat(top, part, 0700));
        meet(&together->met, 3 * i + 2);
        /* Both parts stay for the host to see. */
        int both = faccessat(top, part, F_OK, 0) == 0 && faccessat(top, other, F_OK, 0) == 0;
        meet(&together->met, 3 * i + 3);
        if (!both)
            unlinkat(top, part, AT_REMOVEDIR);
        else if (is_first)
            __atomic_store_n(&together->directory, number + 1, __ATOMIC_RELEASE);
    }
}

static void race(const char *kind, long wanted)
{
    static const struct sockaddr_un by_link = {AF_UNIX, "link/n"}, last = {AF_UNIX, "last"},
                                    name = {AF_UNIX, "n"}, by_cwd = {AF_UNIX, "/proc/self/cwd/n"},
                                    by_number = {AF_UNIX, "/proc/self/fd/50/n"};
    static const char *const hows[] = {"kept/.envrc", ".envrc", ".claude/n"};
    for (long i = 0; shared->calls < wanted; i++) {
        long turn = i / MAKING_ACTS;
        if (strcmp(kind, "how") == 0) {
            int fd = (int)syscall(SYS_openat2, top, hows[i % 3], &shared->how[i % 3],
                                  sizeof(struct open_how));
            count(fd);
            if (fd >= 0)
                close(fd);
        } else if (strcmp(kind, "killed") == 0)
            kill_caller(i);
        else if (flip == flip_letter) {
            struct place *place = &places[turn % PLACES];
            if (place == &places[KEPT])
                change(i + turn, place->address.sun_path);
            else
                make_and_remove(i, AT_FDCWD, &place->address, place->free);
        } else if (flip == flip_link && i % 4 == 0) {
            int fd = openat(top, last.sun_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
            count(fd);
            if (fd >= 0) {
                close(fd);
                unlinkat(top, "aclaude/n", 0);
            }
        } else if (flip == flip_link || flip == flip_relink || flip == flip_slow)
            make_and_remove(flip == flip_slow ? BIND : i, AT_FDCWD, &by_link, "aclaude/n");
        else if (flip == flip_directories)
            make_and_remove(i, turn % 2 ? numbers[0][turn / 2 % 2] : AT_FDCWD,
                            turn % 2 ? &name : &places[0].address, "aclaude/n");
        else if (flip == flip_numbers && turn % 3 == 2)
            change_open(i + turn);
        else if (flip == flip_numbers)
            make_and_remove(i, turn % 3 ? AT_FDCWD : DIRECTORY, turn % 3 ? &by_number : &name,
                            "aclaude/n");
        else
            make_and_remove(i, AT_FDCWD, turn % 2 ? &by_cwd : &name, "aclaude/n");
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *kind = argv[1], *half = argc > 3 ? argv[3] : "";
    if (strcmp(kind, "pause") == 0) {
        for (volatile long i = 0; i < 100000; i++)
            ;
        return 0;
    }
    long wanted = atol(argv[2]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    top = open(".", O_RDONLY | O_CLOEXEC);
    printf("started\n");
    fflush(stdout);
    if (strcmp(kind, "parts") == 0) {
        make_parts(wanted, strcmp(half, "make") == 0);
    } else {
        static const struct {
            const char *kind;
            void (*flip)(int which);
        } flips[] = {
            {"thread", flip_letter},
            {"clone", flip_letter},
            {"how", flip_how},
            {"link", flip_link},
            {"relink", flip_relink},
            {"slow", flip_slow},
            {"exchange", flip_directories},
            {"descriptor", flip_numbers},
            {"cwd", flip_cwd},
        };
        for (size_t i = 0; i < sizeof flips / sizeof *flips; i++)
            if (strcmp(kind, flips[i].kind) == 0)
                flip = flips[i].flip;
        const char *directories[] = {"aclaude", ".claude"};
        const char *files[] = {"kept/aenvrc", "kept/.envrc"};
        for (int i = 0; i < 2; i++) {
            numbers[0][i] = open(directories[i], O_RDONLY | O_CLOEXEC);
            numbers[1][i] = open(files[i], O_RDONLY | O_CLOEXEC);
        }
        if (flip && strcmp(half, "make") != 0) {
            symlinkat("aclaude", top, "link");
            symlinkat(".claude", top, "other");
            symlinkat("aclaude/n", top, "last");
            symlinkat(".claude/n", top, "other-last");
            make_slow_links();
        }
        if (strcmp(half, "flip") == 0) {
            mknodat(top, "flipping", S_IFREG | 0600, 0);
            for (long i = 0; faccessat(top, "done", F_OK, 0) < 0; i++)
                flip((int)(i & 1));
            return 0;
        }
        if (strcmp(half, "make") == 0)
            while (faccessat(top, "flipping", F_OK, 0) < 0)
                usleep(1000);
        else if (flip)
            start_flips(kind);
        race(kind, wanted);
        if (strcmp(half, "make") == 0)
            mknodat(top, "done", S_IFREG | 0600, 0);
    }
    printf("calls %ld made %ld refused %ld\n", shared->calls, shared->made, shared->refused);
    fflush(stdout);
    _exit(0);
}
