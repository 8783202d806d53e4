/* The calls. Each function makes its arguments, prints them, does the call and prints the
   result. */
#include "file_calls.h"
#include <linux/openat2.h>
#include <stddef.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#define SYS_removexattrat 466
#endif
#ifndef RENAME_WHITEOUT
#define RENAME_WHITEOUT 4
#endif

/* Calls without a directory descriptor, where the machine has them. */
#ifdef SYS_open
#define OPEN(path, flags, mode) syscall(SYS_open, path, flags, mode)
#define CREAT(path, mode) syscall(SYS_creat, path, mode)
#define MKDIR(path, mode) syscall(SYS_mkdir, path, mode)
#define MKNOD(path, mode, device) syscall(SYS_mknod, path, mode, device)
#define SYMLINK(target, path) syscall(SYS_symlink, target, path)
#define LINK(old, new) syscall(SYS_link, old, new)
#define RENAME(old, new) syscall(SYS_rename, old, new)
#define UNLINK(path) syscall(SYS_unlink, path)
#define RMDIR(path) syscall(SYS_rmdir, path)
#define CHMOD(path, mode) syscall(SYS_chmod, path, mode)
#define CHOWN(path, user, group) syscall(SYS_chown, path, user, group)
#define LCHOWN(path, user, group) syscall(SYS_lchown, path, user, group)
#define UTIMES(path, times) syscall(SYS_utimes, path, times)
#define UTIME(path, times) syscall(SYS_utime, path, times)
#define FUTIMESAT(fd, path, times) syscall(SYS_futimesat, fd, path, times)
#else
#define OPEN(path, flags, mode) syscall(SYS_openat, AT_FDCWD, path, flags, mode)
#define CREAT(path, mode) OPEN(path, O_CREAT | O_WRONLY | O_TRUNC, mode)
#define MKDIR(path, mode) syscall(SYS_mkdirat, AT_FDCWD, path, mode)
#define MKNOD(path, mode, device) syscall(SYS_mknodat, AT_FDCWD, path, mode, device)
#define SYMLINK(target, path) syscall(SYS_symlinkat, target, AT_FDCWD, path)
#define LINK(old, new) syscall(SYS_linkat, AT_FDCWD, old, AT_FDCWD, new, 0)
#define RENAME(old, new) syscall(SYS_renameat, AT_FDCWD, old, AT_FDCWD, new)
#define UNLINK(path) syscall(SYS_unlinkat, AT_FDCWD, path, 0)
#define RMDIR(path) syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR)
#define CHMOD(path, mode) syscall(SYS_fchmodat, AT_FDCWD, path, mode)
#define CHOWN(path, user, group) syscall(SYS_fchownat, AT_FDCWD, path, user, group, 0)
#define LCHOWN(path, user, group) \
    syscall(SYS_fchownat, AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW)
#define UTIMES(path, times) ((void)(times), syscall(SYS_utimensat, AT_FDCWD, path, NULL, 0))
#define UTIME(path, times) UTIMES(path, times)
#define FUTIMESAT(fd, path, times) ((void)(times), syscall(SYS_utimensat, fd, path, NULL, 0))
#endif

static const unsigned modes[] = {0644, 0666, 0777, 0777, 0755, 0755, 0600, 0400, 0200, 0,
                                 01777, 02755, 04755, 07777, 0177777};

struct flag_name { unsigned long flag; const char *name; };

static void say_flags(unsigned long flags, const struct flag_name *known, size_t count)
{
    const char *separator = "";
    for (size_t i = 0; i < count; i++)
        if ((flags & known[i].flag) == known[i].flag) {
            say("%s%s", separator, known[i].name);
            flags &= ~known[i].flag;
            separator = "|";
        }
    if (flags || !*separator)
        say("%s0x%lx", separator, flags);
}

/* The mode that a directory gets. */
static unsigned directory_mode(unsigned mode)
{
    return with(FEATURE_SHUT_DIRECTORY) ? mode : mode | 0500;
}

/* The mode that a socket gets, if the path names one. */
static unsigned socket_mode(long fd, const char *path, unsigned mode)
{
    struct stat facts;
    bool socket = fstatat((int)fd, path, &facts, AT_EMPTY_PATH) == 0 && S_ISSOCK(facts.st_mode);
    return socket && !with(FEATURE_SHUT_SOCKET) ? mode | 0200 : mode;
}

static const struct flag_name at_flags[] = {
    {AT_SYMLINK_NOFOLLOW, "NOFOLLOW"}, {AT_SYMLINK_FOLLOW, "FOLLOW"},
    {AT_EMPTY_PATH, "EMPTY_PATH"}, {AT_REMOVEDIR, "REMOVEDIR"},
};

/* Links to directories of /proc are as many as there are processes. */
static void say_facts(const struct stat *facts)
{
    if (S_ISDIR(facts->st_mode) && facts->st_dev != root_device)
        say(" [%o]", facts->st_mode);
    else
        say(" [%o %lu]", facts->st_mode, (unsigned long)facts->st_nlink);
    /* Sizes of symbolic links differ with the length of ROOT. */
    if (S_ISREG(facts->st_mode))
        say(" size %lld", (long long)facts->st_size);
}

/* What a path names after a call that succeeded. */
static void say_name(long fd, const char *path)
{
    struct stat facts;
    if (fstatat((int)fd, path, &facts, AT_SYMLINK_NOFOLLOW) < 0) {
        say(" [%s]", errno_name(errno));
        return;
    }
    say_facts(&facts);
    if (facts.st_dev == root_device && (facts.st_uid != getuid() || facts.st_gid != getgid()))
        say(" of another owner");
}

static void finish(long result, long fd, const struct path *path)
{
    say_result(result);
    if (result >= 0)
        say_name(fd, path->address);
}

/* --- opening --- */

static const struct flag_name open_flags[] = {
    {O_TMPFILE, "TMPFILE"}, {O_CREAT, "CREAT"}, {O_EXCL, "EXCL"}, {O_TRUNC, "TRUNC"},
    {O_APPEND, "APPEND"}, {O_DIRECTORY, "DIRECTORY"}, {O_NOFOLLOW, "NOFOLLOW"}, {O_PATH, "PATH"},
    {O_NONBLOCK, "NONBLOCK"}, {O_CLOEXEC, "CLOEXEC"}, {O_SYNC, "SYNC"}, {O_DSYNC, "DSYNC"},
    {O_NOATIME, "NOATIME"}, {O_DIRECT, "DIRECT"}, {O_NOCTTY, "NOCTTY"},
};

static unsigned make_open_flags(struct random *random)
{
    static const unsigned access[] = {O_RDONLY, O_WRONLY, O_WRONLY, O_RDWR, O_RDWR};
    unsigned flags = chance(random, 4) ? O_ACCMODE : PICK(random, access);
    const struct { unsigned flag, percent; } wanted[] = {
        {O_CREAT, 55}, {O_EXCL, 12}, {O_TRUNC, 20}, {O_APPEND, 15}, {O_DIRECTORY, 8},
        {O_NOFOLLOW, 10}, {O_PATH, 5}, {O_TMPFILE, 4}, {O_NONBLOCK, 20}, {O_CLOEXEC, 50},
        {O_SYNC, 2}, {O_DSYNC, 2}, {O_NOATIME, 3}, {O_DIRECT, 2}, {O_NOCTTY, 3}, {1u << 30, 2},
    };
    if (chance(random, 12)) /* directories and names for later steps */
        return PICK(random, ((unsigned[]){O_RDONLY | O_DIRECTORY, O_PATH, O_PATH | O_NOFOLLOW,
                                          O_PATH | O_DIRECTORY, O_TMPFILE | O_RDWR}));
    for (size_t i = 0; i < COUNT(wanted); i++)
        if (chance(random, wanted[i].percent))
            flags |= wanted[i].flag;
    return flags;
}

/* An open of a FIFO must not wait for its other end: only FEATURE_FIFO_WAIT does that. */
static unsigned without_waiting(long fd, const char *path, unsigned flags)
{
    struct stat facts;
    bool fifo = fstatat((int)fd, path, &facts, 0) == 0 && S_ISFIFO(facts.st_mode);
    return fifo ? flags | O_NONBLOCK : flags;
}

static void keep_or_close(struct random *random, int fd)
{
    char link[64], target[PATH_ROOM];
    sprintf(link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    target[length > 0 ? length : 0] = 0;
    int slot = (int)below(random, FREE_SLOTS);
    if (!chance(random, 40) || !inside_tree(target)) {
        close(fd);
        return;
    }
    if (slots[slot] >= 0)
        close(slots[slot]);
    slots[slot] = fd;
    say(" kept");
}

static void finish_open(struct random *random, long fd, unsigned step)
{
    struct stat facts;
    say_result(fd);
    if (fd < 0)
        return;
    int flags = fcntl((int)fd, F_GETFL);
    fstat((int)fd, &facts);
    say(" flags 0%o%s", flags, fcntl((int)fd, F_GETFD) & FD_CLOEXEC ? " cloexec" : "");
    say_facts(&facts);
    /* A write with O_SYNC waits for the disk. */
    bool writes = (flags & O_ACCMODE) != O_RDONLY && !(flags & (O_PATH | O_DSYNC));
    if (writes && chance(random, 50)) {
        char text[10];
        memset(text, 'A' + (int)(step % 26), sizeof text);
        say(" write");
        say_result(write((int)fd, text, 1 + below(random, sizeof text)));
    }
    keep_or_close(random, (int)fd);
}

static void act_open(struct random *random, unsigned step)
{
    struct path path;
    unsigned flags = make_open_flags(random), mode = PICK(random, modes);
    make_path(random, FIRST_PATH, &path);
    flags = without_waiting(AT_FDCWD, path.address, flags);
    say("open(%s, %u|", path.shown, flags & O_ACCMODE);
    say_flags(flags & ~(unsigned)O_ACCMODE, open_flags, COUNT(open_flags));
    say(", 0%o)", mode);
    finish_open(random, OPEN(path.address, flags, mode), step);
}

static void act_openat(struct random *random, unsigned step)
{
    struct path path;
    struct base base;
    unsigned flags = make_open_flags(random), mode = PICK(random, modes);
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    flags = without_waiting(base.fd, path.address, flags);
    say("openat(%s, %s, %u|", base.shown, path.shown, flags & O_ACCMODE);
    say_flags(flags & ~(unsigned)O_ACCMODE, open_flags, COUNT(open_flags));
    say(", 0%o)", mode);
    finish_open(random, syscall(SYS_openat, base.fd, path.address, flags, mode), step);
}

static void act_creat(struct random *random, unsigned step)
{
    struct path path;
    struct stat facts;
    unsigned mode = PICK(random, modes);
    make_path(random, FIRST_PATH, &path);
    if (fstatat(AT_FDCWD, path.address, &facts, 0) == 0 && S_ISFIFO(facts.st_mode))
        put_path(FIRST_PATH, &path, ".");
    say("creat(%s, 0%o)", path.shown, mode);
    finish_open(random, CREAT(path.address, mode), step);
}

static const struct flag_name resolve_flags[] = {
    {RESOLVE_NO_XDEV, "NO_XDEV"}, {RESOLVE_NO_MAGICLINKS, "NO_MAGICLINKS"},
    {RESOLVE_NO_SYMLINKS, "NO_SYMLINKS"}, {RESOLVE_BENEATH, "BENEATH"},
    {RESOLVE_IN_ROOT, "IN_ROOT"}, {RESOLVE_CACHED, "CACHED"},
};

static void act_openat2(struct random *random, unsigned step)
{
    static const size_t sizes[] = {0, 8, 23, 32, 32, 5000};
    struct { struct open_how how; uint64_t more[640]; } given = {0};
    struct path path;
    struct base base;
    unsigned flags = make_open_flags(random);
    if (!with(FEATURE_PATH_HOW))
        flags &= ~(unsigned)O_PATH;
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    given.how.flags = without_waiting(base.fd, path.address, flags);
    /* Another root may lead to a FIFO that the look before the call does not see. */
    if (chance(random, 50)) {
        given.how.resolve = PICK(random, ((uint64_t[]){
            RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH,
            RESOLVE_IN_ROOT, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH,
            RESOLVE_IN_ROOT | RESOLVE_BENEATH, 1u << 20}));
        given.how.flags |= O_NONBLOCK;
    }
    /* What the cache of names has is not the same in two runs, but this pair always fails. */
    if ((flags & O_CREAT) && chance(random, 5))
        given.how.resolve |= RESOLVE_CACHED;
    if (!with(FEATURE_NO_XDEV))
        given.how.resolve &= ~(uint64_t)RESOLVE_NO_XDEV;
    if ((flags & (O_CREAT | O_TMPFILE)) || chance(random, 10))
        given.how.mode = PICK(random, modes);
    size_t size = chance(random, 8) ? PICK(random, sizes) : sizeof given.how;
    if (chance(random, 50))
        given.more[0] = size > sizeof given.how;
    const void *how = chance(random, 2) ? unreadable_address(random) : &given;
    say("openat2(%s, %s, %s%u|", base.shown, path.shown, how == &given ? "" : "UNREADABLE ",
        (unsigned)given.how.flags & O_ACCMODE);
    say_flags(given.how.flags & ~(unsigned)O_ACCMODE, open_flags, COUNT(open_flags));
    say(", 0%llo, ", (unsigned long long)given.how.mode);
    say_flags(given.how.resolve, resolve_flags, COUNT(resolve_flags));
    say(", %zu%s)", size, given.more[0] ? " more" : "");
    /* A rename anywhere on the machine can interrupt a walk that may not leave a directory. */
    long fd = -1;
    for (int tries = 0; tries < 1000; tries++) {
        fd = syscall(SYS_openat2, base.fd, path.address, how, size);
        if (fd >= 0 || errno != EAGAIN || given.how.resolve & RESOLVE_CACHED)
            break;
    }
    finish_open(random, fd, step);
}

/* No descriptor is free: the kernel says so before it makes or empties a file. */
static void act_open_at_limit(struct random *random, unsigned step)
{
    struct path path;
    struct rlimit limit, lower;
    unsigned flags = PICK(random, ((unsigned[]){O_CREAT | O_RDWR, O_TRUNC | O_RDWR, O_RDONLY}));
    int lowest = dup(0);
    close(lowest);
    getrlimit(RLIMIT_NOFILE, &limit);
    lower = (struct rlimit){(rlim_t)lowest, limit.rlim_max};
    make_path(random, FIRST_PATH, &path);
    flags = without_waiting(AT_FDCWD, path.address, flags | O_NONBLOCK);
    say("open(%s, 0%o, 0644) without a free descriptor", path.shown, flags);
    setrlimit(RLIMIT_NOFILE, &lower);
    long fd = OPEN(path.address, flags, 0644);
    int number = errno;
    setrlimit(RLIMIT_NOFILE, &limit);
    errno = number;
    finish_open(random, fd, step);
    if (fd < 0)
        say_name(AT_FDCWD, path.address);
}

/* --- making names --- */

static void act_mkdir(struct random *random, unsigned step)
{
    struct path path;
    struct base base;
    unsigned mode = directory_mode(PICK(random, modes));
    (void)step;
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    if (chance(random, 40)) {
        say("mkdir(%s, 0%o)", path.shown, mode);
        finish(MKDIR(path.address, mode), AT_FDCWD, &path);
    } else {
        say("mkdirat(%s, %s, 0%o)", base.shown, path.shown, mode);
        finish(syscall(SYS_mkdirat, base.fd, path.address, mode), base.fd, &path);
    }
}

static void act_mknod(struct random *random, unsigned step)
{
    static const unsigned types[] = {S_IFIFO, S_IFIFO, S_IFIFO, S_IFREG, S_IFREG, 0, S_IFSOCK,
                                     S_IFDIR, S_IFLNK, S_IFCHR, S_IFCHR, S_IFBLK, 0150000};
    struct path path;
    struct base base;
    unsigned type = PICK(random, types), mode = (PICK(random, modes) & 07777) | type;
    unsigned device = type == S_IFCHR && chance(random, 50) ? 0x103 : 0;
    (void)step;
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    if ((type == S_IFCHR || type == S_IFBLK) && !with(FEATURE_CHAR_DEVICE))
        mode = 0600 | S_IFIFO;
    if (type == S_IFSOCK && !with(FEATURE_SOCKET))
        mode = 0600 | S_IFIFO;
    if (type == S_IFSOCK && !with(FEATURE_SHUT_SOCKET))
        mode |= 0200;
    if (chance(random, 40)) {
        say("mknod(%s, 0%o, 0x%x)", path.shown, mode, device);
        finish(MKNOD(path.address, mode, device), AT_FDCWD, &path);
    } else {
        say("mknodat(%s, %s, 0%o, 0x%x)", base.shown, path.shown, mode, device);
        finish(syscall(SYS_mknodat, base.fd, path.address, mode, device), base.fd, &path);
    }
}

static void make_target(struct random *random, struct path *target)
{
    static const char *const simple[] = {"a", "b", "c", "l", "m", "..", ".", "a/b", "../a",
                                         "no-name", "a/", "l/m", "/proc/self/cwd", "./b/../c", ""};
    char bytes[PATH_ROOM];
    switch (below(random, 12)) {
    case 0: case 1:
        snprintf(bytes, sizeof bytes, "%s/%s", root, PICK(random, ((const char *[]){"a", "b"})));
        put_path(SECOND_PATH, target, bytes);
        sprintf(target->shown, "\"ROOT/%s\"", bytes + strlen(root) + 1);
        break;
    case 2: make_fd_path(random, SECOND_PATH, target); break;
    case 3:
        make_path(random, SECOND_PATH, target);
        if (target->names_pid)
            put_path(SECOND_PATH, target, "a");
        break;
    default: put_path(SECOND_PATH, target, PICK(random, simple)); break;
    }
}

static void act_symlink(struct random *random, unsigned step)
{
    struct path path, target;
    struct base base;
    (void)step;
    make_base(random, &base);
    make_target(random, &target);
    make_path(random, FIRST_PATH, &path);
    if (chance(random, 40)) {
        say("symlink(%s, %s)", target.shown, path.shown);
        finish(SYMLINK(target.address, path.address), AT_FDCWD, &path);
    } else {
        say("symlinkat(%s, %s, %s)", target.shown, base.shown, path.shown);
        finish(syscall(SYS_symlinkat, target.address, base.fd, path.address), base.fd, &path);
    }
}

static void act_link(struct random *random, unsigned step)
{
    static const unsigned kinds[] = {0, 0, AT_SYMLINK_FOLLOW, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH,
                                     AT_SYMLINK_FOLLOW | AT_EMPTY_PATH, 1};
    struct path old, new;
    struct base from, to;
    unsigned flags = PICK(random, kinds);
    (void)step;
    make_base(random, &from);
    make_base(random, &to);
    make_path(random, FIRST_PATH, &old);
    make_path(random, SECOND_PATH, &new);
    if (flags & AT_EMPTY_PATH) {
        if (!with(FEATURE_EMPTY_LINK))
            flags &= ~(unsigned)AT_EMPTY_PATH;
        else if (chance(random, 70))
            put_path(FIRST_PATH, &old, "");
    }
    if (flags == AT_SYMLINK_FOLLOW && chance(random, 40))
        make_fd_path(random, FIRST_PATH, &old);
    if (chance(random, 30)) {
        say("link(%s, %s)", old.shown, new.shown);
        finish(LINK(old.address, new.address), AT_FDCWD, &new);
    } else {
        say("linkat(%s, %s, %s, %s, ", from.shown, old.shown, to.shown, new.shown);
        say_flags(flags, at_flags, COUNT(at_flags));
        say(")");
        finish(syscall(SYS_linkat, from.fd, old.address, to.fd, new.address, flags), to.fd, &new);
    }
}

/* The path that bind gets is the one that getsockname gives back. */
static void act_bind(struct random *random, unsigned step)
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    struct path path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length;
    int type = PICK(random, types);
    (void)step;
    make_path(random, FIRST_PATH, &path);
    if (!with(FEATURE_SOCKET) || !path.length)
        return;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    say("bind(%d, %s", type, path.shown);
    if (chance(random, 30)) {
        unsigned mode = socket_mode(fd, "", PICK(random, modes) & 0777);
        fchmod(fd, mode);
        say(" 0%o", mode);
    }
    memcpy(address.sun_path, path.address, path.length < 108 ? path.length : 108);
    length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path.length);
    if (chance(random, 50))
        length++; /* with its NUL */
    const void *given = chance(random, 2) ? unreadable_address(random) : &address;
    say("%s)", given == &address ? "" : " UNREADABLE");
    finish(bind(fd, given, length), AT_FDCWD, &path);
    close(fd);
}

/* --- moving and removing names --- */

static void act_rename(struct random *random, unsigned step)
{
    static const struct flag_name known[] = {{1, "NOREPLACE"}, {2, "EXCHANGE"}, {4, "WHITEOUT"}};
    static const unsigned kinds[] = {0, 1, 1, 2, 2, 2, RENAME_WHITEOUT, 3, 6, 5, 8};
    struct path old, new;
    struct base from, to;
    unsigned flags = PICK(random, kinds);
    (void)step;
    make_base(random, &from);
    make_base(random, &to);
    make_path(random, FIRST_PATH, &old);
    make_path(random, SECOND_PATH, &new);
    if (old.names_fd && new.names_fd && !with(FEATURE_PROC_NAME))
        put_path(FIRST_PATH, &old, "a");
    if (!with(FEATURE_WHITEOUT))
        flags &= ~(unsigned)RENAME_WHITEOUT;
    switch (below(random, 3)) {
    case 0:
        say("rename(%s, %s)", old.shown, new.shown);
        finish(RENAME(old.address, new.address), AT_FDCWD, &new);
        break;
    case 1:
        say("renameat(%s, %s, %s, %s)", from.shown, old.shown, to.shown, new.shown);
        finish(syscall(SYS_renameat, from.fd, old.address, to.fd, new.address), to.fd, &new);
        break;
    default:
        say("renameat2(%s, %s, %s, %s, ", from.shown, old.shown, to.shown, new.shown);
        say_flags(flags, known, COUNT(known));
        say(")");
        finish(syscall(SYS_renameat2, from.fd, old.address, to.fd, new.address, flags), to.fd,
               &new);
    }
}

static void act_unlink(struct random *random, unsigned step)
{
    static const unsigned kinds[] = {0, 0, 0, AT_REMOVEDIR, AT_REMOVEDIR, 1};
    struct path path;
    struct base base;
    unsigned flags = PICK(random, kinds);
    (void)step;
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    if (path.names_fd && !with(FEATURE_PROC_NAME))
        put_path(FIRST_PATH, &path, "a");
    switch (below(random, 4)) {
    case 0:
        say("unlink(%s)", path.shown);
        say_result(UNLINK(path.address));
        break;
    case 1:
        say("rmdir(%s)", path.shown);
        say_result(RMDIR(path.address));
        break;
    default:
        say("unlinkat(%s, %s, ", base.shown, path.shown);
        say_flags(flags, at_flags, COUNT(at_flags));
        say(")");
        say_result(syscall(SYS_unlinkat, base.fd, path.address, flags));
    }
}

/* --- changing what a path names --- */

static volatile sig_atomic_t file_size_signals;
static void count_signal(int number) { (void)number; file_size_signals++; }

static void act_truncate(struct random *random, unsigned step)
{
    static const long lengths[] = {0, 1, 5, 50, 200, 5000, 100000, -1};
    struct path path;
    long length = PICK(random, lengths), limited = chance(random, 30);
    struct rlimit limit, lower;
    (void)step;
    make_path(random, FIRST_PATH, &path);
    say("truncate(%s, %ld)%s", path.shown, length, limited ? " limit 100" : "");
    if (!limited) {
        finish(syscall(SYS_truncate, path.address, length), AT_FDCWD, &path);
        return;
    }
    struct sigaction action = {.sa_handler = chance(random, 50) ? count_signal : SIG_IGN}, before;
    sigaction(SIGXFSZ, &action, &before);
    getrlimit(RLIMIT_FSIZE, &limit);
    lower = (struct rlimit){100, limit.rlim_max};
    file_size_signals = 0;
    setrlimit(RLIMIT_FSIZE, &lower);
    long result = syscall(SYS_truncate, path.address, length);
    int number = errno;
    setrlimit(RLIMIT_FSIZE, &limit);
    sigaction(SIGXFSZ, &before, NULL);
    errno = number;
    finish(result, AT_FDCWD, &path);
    say("%s", file_size_signals ? " SIGXFSZ" : "");
}

static void act_chmod(struct random *random, unsigned step)
{
    /* Directories lose rights here, and get them back. */
    static const unsigned rights[] = {0755, 0755, 0755, 0755, 0700, 0777, 0644, 0600, 0, 0500, 0300,
                                      0100, 02775, 01777, 06755, 0177777};
    static const unsigned kinds[] = {0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH,
                                     AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, 1};
    struct path path;
    struct base base;
    unsigned mode = directory_mode(PICK(random, rights)), flags = PICK(random, kinds);
    (void)step;
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    switch (below(random, 3)) {
    case 0:
        mode = socket_mode(AT_FDCWD, path.address, mode);
        say("chmod(%s, 0%o)", path.shown, mode);
        finish(CHMOD(path.address, mode), AT_FDCWD, &path);
        break;
    case 1:
        mode = socket_mode(base.fd, path.address, mode);
        say("fchmodat(%s, %s, 0%o)", base.shown, path.shown, mode);
        finish(syscall(SYS_fchmodat, base.fd, path.address, mode), base.fd, &path);
        break;
    default:
        if ((flags & AT_EMPTY_PATH) && chance(random, 50))
            put_path(FIRST_PATH, &path, "");
        mode = socket_mode(base.fd, path.address, mode);
        say("fchmodat2(%s, %s, 0%o, ", base.shown, path.shown, mode);
        say_flags(flags, at_flags, COUNT(at_flags));
        say(")");
        finish(syscall(SYS_fchmodat2, base.fd, path.address, mode, flags), base.fd, &path);
    }
}

/* A path whose owner and times this call may set. */
static void make_owned_path(struct random *random, struct path *path)
{
    make_path(random, FIRST_PATH, path);
    if (path->names_fd && undumpable && !with(FEATURE_UNDUMPABLE_LINK))
        put_path(FIRST_PATH, path, "a");
}

static void act_chown(struct random *random, unsigned step)
{
    static const unsigned kinds[] = {0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, 1};
    struct path path;
    struct base base;
    unsigned flags = PICK(random, kinds);
    uid_t user = chance(random, 50) ? getuid() : (uid_t)-1;
    gid_t group = chance(random, 50) ? getgid() : (gid_t)-1;
    (void)step;
    make_base(random, &base);
    make_owned_path(random, &path);
    const char *own = user != (uid_t)-1 ? "own" : "-1", *of = group != (gid_t)-1 ? "own" : "-1";
    switch (below(random, 3)) {
    case 0:
        say("chown(%s, %s, %s)", path.shown, own, of);
        finish(CHOWN(path.address, user, group), AT_FDCWD, &path);
        break;
    case 1:
        say("lchown(%s, %s, %s)", path.shown, own, of);
        finish(LCHOWN(path.address, user, group), AT_FDCWD, &path);
        break;
    default:
        if ((flags & AT_EMPTY_PATH) && chance(random, 50))
            put_path(FIRST_PATH, &path, "");
        say("fchownat(%s, %s, %s, %s, ", base.shown, path.shown, own, of);
        say_flags(flags, at_flags, COUNT(at_flags));
        say(")");
        finish(syscall(SYS_fchownat, base.fd, path.address, user, group, flags), base.fd, &path);
    }
}

static void act_times(struct random *random, unsigned step)
{
    static const unsigned kinds[] = {0, 0, AT_SYMLINK_NOFOLLOW, AT_SYMLINK_NOFOLLOW,
                                     AT_EMPTY_PATH, 1};
    struct path path;
    struct base base;
    struct timespec times[2];
    unsigned flags = PICK(random, kinds);
    (void)step;
    make_base(random, &base);
    make_owned_path(random, &path);
    for (int i = 0; i < 2; i++)
        times[i] = (struct timespec){1000000000 + below(random, 1000), below(random, 1000000)};
    long seconds[2][2] = {{times[0].tv_sec, times[0].tv_nsec}, {times[1].tv_sec, times[1].tv_nsec}};
    switch (below(random, 8)) {
    case 0:
        say("utimes(%s, %ld.%06ld)", path.shown, seconds[1][0], seconds[1][1]);
        finish(UTIMES(path.address, seconds), AT_FDCWD, &path);
        return;
    case 1:
        say("utime(%s, %ld)", path.shown, seconds[0][1]);
        finish(UTIME(path.address, seconds), AT_FDCWD, &path);
        return;
    case 2:
        say("futimesat(%s, %s, %ld.%06ld)", base.shown, path.shown, seconds[1][0], seconds[1][1]);
        finish(FUTIMESAT(base.fd, path.address, seconds), base.fd, &path);
        return;
    }
    const void *given = times;
    const char *kind = "";
    switch (below(random, 10)) {
    case 0: given = NULL; kind = " NULL"; break;
    case 1: given = (char *)unreadable_address(random) + 16; kind = " UNREADABLE"; break;
    case 2: times[0].tv_nsec = UTIME_OMIT; kind = " omit first"; break;
    case 3: times[1].tv_nsec = UTIME_OMIT; kind = " omit second"; break;
    case 4: times[0].tv_nsec = times[1].tv_nsec = UTIME_OMIT; kind = " omit both"; break;
    case 5: times[1].tv_nsec = UTIME_NOW; kind = " now"; break;
    case 6: times[1].tv_nsec = 1000000000; kind = " wrong"; break;
    }
    if (chance(random, 15)) {
        path.address = NULL;
        strcpy(path.shown, "NULL");
    }
    say("utimensat(%s, %s, %ld.%09ld%s, ", base.shown, path.shown, seconds[1][0], seconds[1][1],
        kind);
    say_flags(flags, at_flags, COUNT(at_flags));
    say(")");
    say_result(syscall(SYS_utimensat, base.fd, path.address, given, flags));
}

/* A default ACL that gives everything to everybody: names below it ignore the umask. */
static const struct { uint32_t version; struct { uint16_t tag, perm; uint32_t id; } entry[3]; }
    open_acl = {2, {{1, 7, ~0u}, {4, 7, ~0u}, {0x20, 7, ~0u}}};

static void act_xattr(struct random *random, unsigned step)
{
    static char long_name[300], value[65600];
    static const char *const attributes[] = {
        "user.a", "user.a", "user.a", "user.b", "user.b", "user.", "bogus.a", "trusted.a",
        "security.a", "", long_name, "system.posix_acl_default", "system.posix_acl_access"};
    static const size_t sizes[] = {0, 1, 7, 7, 7, 30, 65537};
    struct path path;
    struct base base;
    const char *name = PICK(random, attributes);
    const void *content = value;
    size_t size = PICK(random, sizes);
    int flags = PICK(random, ((int[]){0, 0, 0, XATTR_CREATE, XATTR_REPLACE, 3, 8}));
    memset(long_name, 'u', 260);
    memcpy(long_name, "user.", 5);
    memset(value, 'a' + (int)(step % 26), 64);
    make_base(random, &base);
    make_path(random, FIRST_PATH, &path);
    if (strncmp(name, "system.", 7) == 0) {
        if (!with(FEATURE_ACL))
            name = "user.c";
        else if (chance(random, 80)) {
            content = &open_acl;
            size = sizeof open_acl;
            flags = 0;
        }
    }
    char shown[40];
    snprintf(shown, sizeof shown, "%.30s", name);
    if (chance(random, 2)) {
        name = unreadable_address(random);
        strcpy(shown, "UNREADABLE");
    }
    if (chance(random, 2))
        content = unreadable_address(random);
    struct { uint64_t value; uint32_t size, flags; } arguments = {(uintptr_t)content,
                                                                  (uint32_t)size, (uint32_t)flags};
    unsigned at = chance(random, 30) ? AT_SYMLINK_NOFOLLOW : 0;
    switch (below(random, with(FEATURE_XATTRAT) ? 8 : 6)) {
    case 0:
        say("lsetxattr(%s, %s, %zu, %d)", path.shown, shown, size, flags);
        finish(syscall(SYS_lsetxattr, path.address, name, content, size, flags), AT_FDCWD, &path);
        break;
    case 1:
        say("removexattr(%s, %s)", path.shown, shown);
        finish(syscall(SYS_removexattr, path.address, name), AT_FDCWD, &path);
        break;
    case 2:
        say("lremovexattr(%s, %s)", path.shown, shown);
        finish(syscall(SYS_lremovexattr, path.address, name), AT_FDCWD, &path);
        break;
    case 6:
        say("setxattrat(%s, %s, 0x%x, %s, %zu, %d)", base.shown, path.shown, at, shown, size,
            flags);
        finish(syscall(SYS_setxattrat, base.fd, path.address, at, name, &arguments,
                       sizeof arguments), base.fd, &path);
        break;
    case 7:
        say("removexattrat(%s, %s, 0x%x, %s)", base.shown, path.shown, at, shown);
        finish(syscall(SYS_removexattrat, base.fd, path.address, at, name), base.fd, &path);
        break;
    default:
        say("setxattr(%s, %s, %zu, %d)", path.shown, shown, size, flags);
        finish(syscall(SYS_setxattr, path.address, name, content, size, flags), AT_FDCWD, &path);
    }
}

/* --- what the calls depend on --- */

static void act_chdir(struct random *random, unsigned step)
{
    struct path path;
    char now[PATH_ROOM];
    int fd = slots[below(random, SLOTS - 1)]; /* not into /proc */
    (void)step;
    make_path(random, FIRST_PATH, &path);
    if (chance(random, 40)) {
        say("fchdir(%d)", fd);
        say_result(syscall(SYS_fchdir, fd));
    } else {
        say("chdir(%s)", path.shown);
        say_result(syscall(SYS_chdir, path.address));
    }
    /* A removed directory has no path, and stays. */
    if (chance(random, 50) || (getcwd(now, sizeof now) && !inside_tree(now))) {
        say(" back");
        say_result(fchdir(slots[SLOT_ROOT]));
    }
}

static void act_umask(struct random *random, unsigned step)
{
    static const unsigned masks[] = {0, 022, 022, 027, 077, 007, 0222, 0777};
    unsigned mask = PICK(random, masks);
    (void)step;
    if (!with(FEATURE_SHUT_DIRECTORY))
        mask &= ~0500u;
    if (!with(FEATURE_SHUT_SOCKET))
        mask &= ~0200u;
    say("umask(0%o) = 0%o", mask, (unsigned)umask(mask));
}

static void act_close(struct random *random, unsigned step)
{
    int slot = (int)below(random, FREE_SLOTS);
    (void)step;
    say("close(%d)", slots[slot]);
    say_result(close(slots[slot]));
    slots[slot] = -1;
}

/* By descriptors: a tree without rights answers every further call with EACCES. */
static void act_restore_rights(struct random *random, unsigned step)
{
    (void)random;
    (void)step;
    say("fchmod of the top");
    say_result(fchmod(slots[SLOT_ROOT], 0755));
    for (int i = 0; i < FREE_SLOTS; i++)
        fchmod(slots[i], 0755);
}

static const struct { unsigned weight; void (*act)(struct random *, unsigned); } acts[] = {
    {16, act_openat}, {9, act_open}, {3, act_creat}, {9, act_openat2}, {2, act_open_at_limit},
    {10, act_mkdir}, {6, act_mknod}, {8, act_symlink}, {8, act_link}, {4, act_bind},
    {12, act_rename}, {9, act_unlink}, {5, act_truncate}, {8, act_chmod}, {3, act_chown},
    {5, act_times}, {6, act_xattr}, {3, act_chdir}, {3, act_umask}, {1, act_close},
    {2, act_restore_rights},
};

void do_call(struct random *random, unsigned step)
{
    unsigned sum = 0;
    for (size_t i = 0; i < COUNT(acts); i++)
        sum += acts[i].weight;
    unsigned chosen = below(random, sum);
    for (size_t i = 0; i < COUNT(acts); i++) {
        if (chosen < acts[i].weight) {
            acts[i].act(random, step);
            return;
        }
        chosen -= acts[i].weight;
    }
}
