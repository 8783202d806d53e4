/* The control of the races on names: a judge that reads what a caller names, and then lets the
   kernel continue. The kernel reads all of it again.

     naive_writes continue|perform COMMAND…

   It refuses names in .git and .claude, the name .envrc, and the last part of a bare repository.
   perform: it does each openat(2) itself, and looks at the caller's directory again. Two threads
   judge, and pause before they answer: so the control loses soon on a busy machine too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NONE = -1, ROOM = 3 * PATH_MAX, PAUSE_US = 100, THREADS = 2 };

/* Where the paths of a call are in its arguments, and the directories that they start in. */
static const struct shape {
    int number, directory, path, other_directory, other_path;
} shapes[] = {
    {SYS_openat, 0, 1, NONE, NONE},   {SYS_openat2, 0, 1, NONE, NONE},
    {SYS_mkdirat, 0, 1, NONE, NONE},  {SYS_mknodat, 0, 1, NONE, NONE},
    {SYS_symlinkat, 1, 2, NONE, NONE}, {SYS_linkat, 0, 1, 2, 3},
    {SYS_renameat, 0, 1, 2, 3},       {SYS_renameat2, 0, 1, 2, 3},
    {SYS_unlinkat, 0, 1, NONE, NONE}, {SYS_fchmodat, 0, 1, NONE, NONE},
    {SYS_truncate, NONE, 0, NONE, NONE}, {SYS_utimensat, 0, 1, NONE, NONE},
    {SYS_setxattr, NONE, 0, NONE, NONE}, {SYS_bind, NONE, 1, NONE, NONE},
    {SYS_fchmod, 0, NONE, NONE, NONE}, {SYS_fsetxattr, 0, NONE, NONE, NONE},
#ifdef SYS_rename
    {SYS_rename, NONE, 0, NONE, 1},
#endif
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int read_memory(pid_t pid, unsigned long long address, void *room, size_t length)
{
    struct iovec here = {room, length}, there = {(void *)address, length};
    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)length ? 0 : -1;
}

static int read_text(pid_t pid, unsigned long long address, char *room)
{
    for (size_t got = 0; got < PATH_MAX;) {
        size_t piece = 4096 - (address + got) % 4096;
        piece = piece < PATH_MAX - got ? piece : PATH_MAX - got;
        if (read_memory(pid, address + got, room + got, piece) < 0)
            return -1;
        if (memchr(room + got, 0, piece))
            return 0;
        got += piece;
    }
    return -1;
}

/* The path of a file that is open here. */
static int text_of(int fd, char *room)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, room, PATH_MAX - 1);
    if (length < 0)
        return -1;
    room[length] = 0;
    return 0;
}

static int is_protected_text(const char *text)
{
    size_t length = strlen(text);
    return strstr(text, "/.git/") || strstr(text, "/.claude/") ||
           (length > 7 && strcmp(text + length - 7, "/.envrc") == 0);
}

/* Would the name complete a bare repository? */
static int completes_repository(const char *parent, const char *name)
{
    char head[ROOM], other[ROOM];
    int is_part = strcmp(name, "objects") == 0 || strcmp(name, "refs") == 0;
    snprintf(head, sizeof head, "%s/HEAD", parent);
    snprintf(other, sizeof other, "%s/%s", parent, strcmp(name, "refs") ? "refs" : "objects");
    return is_part && access(head, F_OK) == 0 && access(other, F_OK) == 0;
}

static int is_protected(const char *path)
{
    char joined[ROOM], text[ROOM];
    snprintf(joined, sizeof joined, "%s", path);
    for (int links = 0; links < 8; links++) {
        int fd = open(joined, O_PATH | O_CLOEXEC);
        if (fd >= 0) {
            int result = text_of(fd, text) < 0 || is_protected_text(text);
            close(fd);
            /* A directory is not moved with a protected name in it. */
            strcat(text, "/n");
            return result || access(text, F_OK) == 0;
        }
        char *slash = strrchr(joined, '/'), parent[PATH_MAX], target[PATH_MAX];
        if (!slash)
            return 1;
        *slash = 0;
        int above = open(joined, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (above < 0)
            return 0;
        ssize_t length = readlinkat(above, slash + 1, target, sizeof target - 1);
        int failed = text_of(above, parent) < 0;
        close(above);
        if (failed)
            return 1;
        if (length < 0) {
            snprintf(text, sizeof text, "%s/%s", parent, slash + 1);
            return is_protected_text(text) || completes_repository(parent, slash + 1);
        }
        target[length] = 0;
        snprintf(joined, sizeof joined, "%s/%s", target[0] == '/' ? "" : parent, target);
    }
    return 1;
}

/* A path of the caller, as this process can open it. */
static int join(pid_t pid, int directory, const char *path, char *room)
{
    static const char self[] = "/proc/self/";
    if (strncmp(path, self, strlen(self)) == 0)
        return snprintf(room, ROOM, "/proc/%d/%s", pid, path + strlen(self));
    if (path[0] == '/')
        return snprintf(room, ROOM, "%s", path);
    if (directory == AT_FDCWD)
        return snprintf(room, ROOM, "/proc/%d/cwd/%s", pid, path);
    return snprintf(room, ROOM, "/proc/%d/fd/%d%s%s", pid, directory, *path ? "/" : "", path);
}

static int is_path_protected(const struct seccomp_notif *call, int directory, int path)
{
    char text[PATH_MAX] = "", joined[ROOM];
    pid_t pid = (pid_t)call->pid;
    unsigned long long address = path == NONE ? 0 : call->data.args[path];
    if (call->data.nr == SYS_bind)
        address += offsetof(struct sockaddr_un, sun_path);
    if (address && read_text(pid, address, text) < 0)
        return 1;
    join(pid, directory == NONE ? AT_FDCWD : (int)call->data.args[directory], text, joined);
    return is_protected(joined);
}

static int only_reads(const struct seccomp_notif *call)
{
    unsigned long long flags = call->data.args[2], writing = O_ACCMODE | O_CREAT | O_TRUNC;
    if (call->data.nr == SYS_openat2 &&
        read_memory((pid_t)call->pid, call->data.args[2], &flags, sizeof flags) < 0)
        return 0;
    return (call->data.nr == SYS_openat || call->data.nr == SYS_openat2) && !(flags & writing);
}

static int judge(const struct seccomp_notif *call)
{
    if (only_reads(call))
        return 0;
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *shape = &shapes[i];
        if (shape->number == call->data.nr)
            return is_path_protected(call, shape->directory, shape->path) ||
                   (shape->other_path != NONE &&
                    is_path_protected(call, shape->other_directory, shape->other_path));
    }
    return 1;
}

/* The call, with the facts of the caller as they are now. */
static int perform(const struct seccomp_notif *call)
{
    char text[PATH_MAX], joined[ROOM];
    pid_t pid = (pid_t)call->pid;
    if (read_text(pid, call->data.args[1], text) < 0)
        return -errno;
    join(pid, (int)call->data.args[0], text, joined);
    int fd = open(joined, (int)call->data.args[2] | O_CLOEXEC, (mode_t)call->data.args[3]);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}

static int listen_to_writes(void)
{
    struct sock_filter code[2 * SHAPES + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < SHAPES; i++) {
        code[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                       (unsigned)shapes[i].number, 0, 1);
        code[2 * i + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    code[2 * SHAPES + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {2 * SHAPES + 2, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                        &filter);
}

static int listener = -1, performs;

static void *serve_for_ever(void *unused)
{
    for (;;) {
        struct seccomp_notif call = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
            continue;
        struct seccomp_notif_resp answer = {.id = call.id};
        if (judge(&call)) {
            answer.error = -EACCES;
        } else {
            usleep(PAUSE_US);
            if (performs && call.data.nr == SYS_openat && !only_reads(&call))
                answer.error = perform(&call);
            else
                answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        }
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    performs = strcmp(argv[1], "perform") == 0;
    /* Descriptors are shared until exec, so the listener is available here. */
    volatile int *shared =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *shared = -1;
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        int fd = listen_to_writes();
        *shared = fd < 0 ? -2 : fd;
        if (fd >= 0)
            execvp(argv[2], argv + 2);
        _exit(126);
    }
    while (*shared == -1)
        sched_yield();
    listener = *shared;
    if (child < 0 || listener < 0)
        return 3;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_for_ever, NULL) != 0)
            return 3;
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
