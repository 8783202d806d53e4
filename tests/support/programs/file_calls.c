/* Seeds, steps, and the processes and threads that do the steps. */
#include "file_calls.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

enum {
    LEVELS = 12, /* directories above the tree, so that no ".." leads out of DIRECTORY */
    STACK = 1 << 18,
    TIMER_US = 250,
    INTERRUPT_US = 2000,
    MOST_LOOKS = 20000,
};

const char *const feature_names[FEATURES] = {
    "char-device", "whiteout", "socket", "acl", "system-path", "no-xdev",
    "signals", "fifo-wait", "odd-thread", "dead-leader", "undumpable", "xattrat", "empty-link",
    "shut-directory", "shut-socket", "proc-name", "path-how",
    "undumpable-link",
};
static bool left_out[FEATURES];
bool with(enum feature feature) { return !left_out[feature]; }
bool undumpable;

int slots[SLOTS];
char root[ROOT_ROOM];
dev_t root_device;
static size_t top_length; /* of the directory that the steps may climb up to */
static uint64_t seed;

/* --- chance --- */

static uint64_t next(struct random *random) /* splitmix64 */
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t below(struct random *random, uint32_t limit) { return (next(random) >> 16) % limit; }
bool chance(struct random *random, unsigned percent) { return below(random, 100) < percent; }

static struct random random_of(unsigned step)
{
    struct random random = {seed * 0x2545f4914f6cdd1du + step};
    next(&random);
    return random;
}

/* --- output --- */

static char line[1 << 16];
static size_t used;

void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + used, sizeof line - used, format, arguments);
    va_end(arguments);
    used += (size_t)length;
    if (used > sizeof line - 8192)
        abort();
}

void say_bytes(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        size_t same = 1;
        while (i + same < length && bytes[i + same] == bytes[i])
            same++;
        unsigned char c = (unsigned char)bytes[i];
        say(c > ' ' && c < 127 && c != '\\' ? "%c" : "\\x%02x", c);
        if (same > 8) {
            say("{%zu}", same);
            i += same - 1;
        }
    }
}

const char *errno_name(int number)
{
    const char *name = strerrorname_np(number);
    return name ? name : "unknown error";
}

void say_result(long result)
{
    if (result < 0)
        say(" = %s", errno_name(errno));
    else
        say(" = %ld", result);
}

void end_line(void)
{
    say("\n");
    for (size_t at = 0; at < used;) {
        ssize_t written = write(1, line + at, used - at);
        if (written < 0 && errno != EINTR)
            _exit(2);
        at += written > 0 ? (size_t)written : 0;
    }
    used = 0;
}

/* --- the tree at the beginning --- */

bool inside_tree(const char *absolute)
{
    return strncmp(absolute, root, top_length) == 0;
}

/* Links 1 to 41 lead to file 0 and links d1 to d41 to directory d0, each by the one before it. */
static void make_chains(void)
{
    char name[8], target[8];
    if (mkdir("k", 0755) < 0 || chdir("k") < 0 || mkdir("d0", 0755) < 0)
        abort();
    close(open("0", O_CREAT | O_WRONLY, 0644));
    for (int i = 1; i <= 41; i++) {
        sprintf(name, "d%d", i);
        sprintf(target, "d%d", i - 1);
        if (symlink(target, name) < 0 || symlink(target + 1, name + 1) < 0)
            abort();
    }
    if (chdir("..") < 0)
        abort();
}

static void begin(void)
{
    for (int i = 0; i < LEVELS; i++)
        if (mkdir("n", 0755) < 0 || chdir("n") < 0)
            abort();
    if (mkdir("w", 0755) < 0 || chdir("w") < 0)
        abort();
    top_length = strlen(root) - 2 * (LEVELS / 2); /* half of the levels, 2 bytes each */
    struct stat facts;
    root_device = stat(".", &facts) < 0 ? 0 : facts.st_dev;
    for (int i = 0; i < SLOTS; i++)
        slots[i] = -1;
    if (seed % 4 == 0)
        make_chains();
    mkdir("a", 0755);
    mkdir("a/b", 0755);
    mkdir("gone", 0755);
    slots[SLOT_ROOT] = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    slots[SLOT_GONE] = open("gone", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    slots[SLOT_FILE] = open("c", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    slots[SLOT_PROC] = open("/proc/self", O_PATH | O_CLOEXEC);
    slots[0] = open("a", O_PATH | O_CLOEXEC);
    if (write(slots[SLOT_FILE], "text\n", 5) != 5 || rmdir("gone") < 0 || symlink("a", "l") < 0)
        abort();
}

/* --- steps that wait, which only the first thread does --- */

static void nothing(int number) { (void)number; }

static void set_timer(int interval_us, int flags)
{
    struct sigaction action = {.sa_handler = nothing, .sa_flags = flags};
    struct itimerval timer = {{0, interval_us}, {0, interval_us}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

void restart_timer(void)
{
    bool wanted = seed % 4 == 3 && with(FEATURE_SIGNALS);
    set_timer(wanted ? TIMER_US : 0, SA_RESTART);
}

static char thread_state(pid_t process, pid_t thread)
{
    char path[64], text[400];
    sprintf(path, "/proc/%d/task/%d/stat", process, thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    char *state = strrchr(text, ')');
    return state ? state[2] : '?';
}

/* Until the thread waits in its call. The result is the same if it does not yet. */
static void look_for(pid_t process, pid_t thread, char state)
{
    for (int i = 0; i < MOST_LOOKS && thread_state(process, thread) != state; i++)
        sched_yield();
}

static volatile pid_t writer_id;

static void *open_to_write(void *error)
{
    writer_id = gettid();
    int fd = open("f", O_WRONLY);
    *(int *)error = fd < 0 ? errno : 0;
    close(fd);
    return NULL;
}

/* One thread waits in open. Another call of the process must not wait for it. */
void do_fifo_rendezvous(void)
{
    pthread_t thread;
    int error = 0;
    if (mkfifo("f", 0600) < 0 || chmod("f", 0600) < 0) {
        say("mkfifo");
        say_result(-1);
        return;
    }
    writer_id = 0;
    if (pthread_create(&thread, NULL, open_to_write, &error) != 0)
        abort();
    while (!writer_id)
        sched_yield();
    look_for(getpid(), writer_id, 'S');
    say("mkdir beside a waiting open");
    say_result(mkdir("g", 0755));
    rmdir("g");
    int fd = open("f", O_RDONLY | O_NONBLOCK);
    say(" reader = %s", fd < 0 ? errno_name(errno) : "0");
    if (fd < 0) /* the writer waits until somebody reads */
        _exit(3);
    pthread_join(thread, NULL);
    say(" writer = %s", error ? errno_name(error) : "0");
    close(fd);
    unlink("f");
}

/* A signal ends an open that waits. */
void do_interrupted_open(void)
{
    if (mkfifo("f", 0600) < 0 || chmod("f", 0600) < 0) {
        say("mkfifo");
        say_result(-1);
        return;
    }
    set_timer(INTERRUPT_US, 0);
    long fd = open("f", O_WRONLY);
    int number = errno;
    restart_timer();
    errno = number;
    say("open of a FIFO without a reader, and a signal");
    say_result(fd);
    unlink("f");
}

/* --- who does the steps --- */

struct part { unsigned first, last; const char *place; };

static void do_steps(const struct part *part)
{
    for (unsigned step = part->first; step < part->last; step++) {
        struct random random = random_of(step);
        say("%u %s", step, part->place);
        do_call(&random, step);
        end_line();
    }
}

static void *steps_of_thread(void *part)
{
    do_steps(part);
    return NULL;
}

static void *steps_after_leader(void *part)
{
    look_for(getpid(), getpid(), 'Z');
    do_steps(part);
    _exit(0);
}

static void run_thread(void *(*body)(void *), struct part *part)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, part) != 0)
        abort();
    pthread_join(thread, NULL);
}

static void await(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (status != 0) {
        say("child ended with status 0x%x", status);
        end_line();
    }
}

static int steps_of_clone(void *part)
{
    do_steps(part);
    return 0;
}

/* A process or a thread that shares the memory. Descriptors that it opens are lost with it, unless
   it shares them too. */
static pid_t start_clone(struct part *part, int flags, int *cleared)
{
    static char *stack;
    if (!stack)
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child = clone(steps_of_clone, stack + STACK, CLONE_VM | flags, part, NULL, NULL, cleared);
    if (child < 0)
        abort();
    return child;
}

/* The parent waits until the child has ended. */
static void run_vfork(struct part *part, int shared)
{
    int before[SLOTS];
    memcpy(before, slots, sizeof slots);
    await(start_clone(part, CLONE_VFORK | SIGCHLD | shared, NULL));
    if (!(shared & CLONE_FILES))
        memcpy(slots, before, sizeof slots);
}

/* Threads of pthread_create share the working directory, the umask and the descriptors. */
static void run_odd_thread(struct part *part, int shared)
{
    static int running;
    int before[SLOTS];
    memcpy(before, slots, sizeof slots);
    running = 1;
    start_clone(part, CLONE_THREAD | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID | shared,
                &running);
    /* The two threads share errno: this one makes no call that sets it before the other has ended.
     */
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, &running, 0 /* FUTEX_WAIT */, 1, NULL, NULL, 0);
    if (!(shared & CLONE_FILES))
        memcpy(slots, before, sizeof slots);
}

enum fork_kind { FORK_PLAIN, FORK_UNDUMPABLE, FORK_DEAD_LEADER };

static void run_fork(struct part *part, enum fork_kind kind)
{
    pthread_t thread;
    pid_t child = fork();
    if (child == 0) {
        undumpable = kind == FORK_UNDUMPABLE;
        if (undumpable)
            prctl(PR_SET_DUMPABLE, 0);
        if (kind == FORK_DEAD_LEADER) {
            if (pthread_create(&thread, NULL, steps_after_leader, part) != 0)
                abort();
            syscall(SYS_exit, 0); /* ends this thread, not the process */
        }
        do_steps(part);
        _exit(0);
    }
    await(child);
}

static void do_part(struct random *random, struct part *part)
{
    part->last = part->first + 1;
    unsigned chosen = below(random, 1000);
    if (chosen < 800) {
        part->place = "";
        do_steps(part);
        return;
    }
    part->last += below(random, 4);
    if (chosen < 840) {
        part->place = "fork: ";
        run_fork(part, FORK_PLAIN);
    } else if (chosen < 860 && with(FEATURE_UNDUMPABLE)) {
        part->place = "undumpable: ";
        run_fork(part, FORK_UNDUMPABLE);
    } else if (chosen < 870 && with(FEATURE_DEAD_LEADER)) {
        part->place = "without leader: ";
        run_fork(part, FORK_DEAD_LEADER);
    } else if (chosen < 900) {
        part->place = "vfork: ";
        run_vfork(part, 0);
    } else if (chosen < 920) {
        part->place = "vfork, shared: ";
        run_vfork(part, CLONE_FILES | CLONE_FS);
    } else if (chosen < 940 && with(FEATURE_ODD_THREAD)) {
        part->place = "thread, own directory: ";
        run_odd_thread(part, CLONE_FILES);
    } else if (chosen < 960 && with(FEATURE_ODD_THREAD)) {
        part->place = "thread, own descriptors: ";
        run_odd_thread(part, CLONE_FS);
    } else if (chosen < 963 && with(FEATURE_FIFO_WAIT)) {
        part->last = part->first + 1;
        say("%u ", part->first);
        if (chance(random, 50))
            do_fifo_rendezvous();
        else
            do_interrupted_open();
        end_line();
    } else {
        part->place = "thread: ";
        run_thread(steps_of_thread, part);
    }
}

static void run_seed(unsigned steps)
{
    begin();
    restart_timer();
    for (struct part part = {0}; part.first < steps; part.first = part.last) {
        /* Numbers from the upper half, so that they are not those of the call. */
        struct random random = random_of(part.first + (1u << 31));
        do_part(&random, &part);
    }
    _exit(0);
}

/* True if the child ended in time. */
static bool ended(pid_t child, int patience_s)
{
    int handle = (int)syscall(SYS_pidfd_open, child, 0);
    struct pollfd poll_handle = {handle, POLLIN, 0};
    bool in_time = poll(&poll_handle, 1, patience_s * 1000) == 1;
    close(handle);
    if (!in_time)
        kill(child, SIGKILL);
    await(child);
    return in_time;
}

static unsigned long number(const char *text) { return strtoul(text, NULL, 10); }

int main(int count, char **words)
{
    char *plain[4] = {NULL, NULL, NULL, "1"};
    int found = 0, patience_s = 20;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--patience") == 0 && i + 1 < count)
            patience_s = (int)number(words[++i]);
        else if (strcmp(words[i], "--without") == 0 && i + 1 < count) {
            int feature = 0;
            i++;
            while (feature < FEATURES && strcmp(feature_names[feature], words[i]) != 0)
                feature++;
            if (feature == FEATURES)
                return fprintf(stderr, "no such feature: %s\n", words[i]), 2;
            left_out[feature] = true;
        } else if (found < 4)
            plain[found++] = words[i];
    }
    if (found < 3)
        return fprintf(stderr, "file_calls DIRECTORY STEPS SEED [COUNT] [--without FEATURE]...\n"),
               2;
    if (chdir(plain[0]) < 0)
        return perror(plain[0]), 2;
    umask(022);
    close_range(3, ~0u, 0);
    signal(SIGPIPE, SIG_IGN);
    make_arenas();
    for (uint64_t last = number(plain[2]) + number(plain[3]), i = number(plain[2]); i < last; i++) {
        seed = i;
        say("seed %llu", (unsigned long long)seed);
        end_line();
        /* Each seed has a directory of its own: what one leaves behind does not change the next. */
        char name[32];
        sprintf(name, "%llu", (unsigned long long)seed);
        if (mkdir(name, 0755) < 0 || chdir(name) < 0 || !getcwd(root, sizeof root - 2 * LEVELS - 2))
            return perror(name), 2;
        for (int level = 0; level < LEVELS; level++)
            strcat(root, "/n");
        strcat(root, "/w");
        pid_t child = fork();
        if (child == 0)
            run_seed((unsigned)number(plain[1]));
        if (!ended(child, patience_s)) {
            say("hangs");
            end_line();
        }
        print_tree();
        remove_tree();
        if (chdir("..") < 0 || rmdir(name) < 0) {
            say("left over: %s", errno_name(errno));
            end_line();
        }
    }
    return 0;
}
