/* The tree that a sequence of calls leaves: everything but inode numbers and the time of day. */
#include "file_calls.h"
#include <dirent.h>
#include <sys/xattr.h>
#include <time.h>

enum { DAY_S = 86400, MOST_NAMES = 4096, MOST_BYTES = 40 };

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_names(int fd, char **names)
{
    int count = 0;
    DIR *directory = fdopendir(dup(fd));
    if (!directory)
        return 0;
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory)) && count < MOST_NAMES;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            names[count++] = strdup(entry->d_name);
    closedir(directory);
    qsort(names, (size_t)count, sizeof *names, by_bytes);
    return count;
}

/* A time that a call set is far from now; any other one depends on the clock. */
static void say_time(const char *name, struct timespec at)
{
    time_t now = time(NULL);
    if (at.tv_sec < now - DAY_S || at.tv_sec > now + DAY_S)
        say(" %s %lld.%09ld", name, (long long)at.tv_sec, at.tv_nsec);
}

static void say_attributes(const char *name)
{
    char list[8192], value[4096], *found[100];
    ssize_t length = llistxattr(name, list, sizeof list);
    size_t count = 0;
    for (ssize_t at = 0; at < length && count < COUNT(found); at += (ssize_t)strlen(list + at) + 1)
        if (strncmp(list + at, "security.", 9) != 0)
            found[count++] = list + at;
    qsort(found, count, sizeof *found, by_bytes);
    for (size_t i = 0; i < count; i++) {
        ssize_t size = lgetxattr(name, found[i], value, sizeof value);
        say(" %s=", found[i]);
        if (size < 0)
            say("%s", errno_name(errno));
        else
            say_bytes(value, (size_t)size);
    }
}

static void say_link(const char *name)
{
    char target[PATH_ROOM];
    ssize_t length = readlink(name, target, sizeof target - 1);
    target[length > 0 ? length : 0] = 0;
    char *known = strstr(target, root), *rest = known ? known + strlen(root) : target;
    say(" -> ");
    if (known) {
        say_bytes(target, (size_t)(known - target));
        say("ROOT");
    }
    say_bytes(rest, strlen(rest));
}

static void say_content(const char *name)
{
    char bytes[MOST_BYTES];
    int fd = open(name, O_RDONLY | O_NOFOLLOW | O_NOATIME);
    ssize_t length = fd < 0 ? 0 : read(fd, bytes, sizeof bytes);
    close(fd);
    say(" \"");
    say_bytes(bytes, length > 0 ? (size_t)length : 0);
    say("\"");
}

/* The file in the current directory. Rights are taken as long as it is read: it may have others
   names, which are printed later. */
static void say_file(const char *name, const struct stat *facts)
{
    say(" %o %lu", facts->st_mode, (unsigned long)facts->st_nlink);
    say_time("modified", facts->st_mtim);
    if (S_ISLNK(facts->st_mode))
        say_link(name);
    if (S_ISREG(facts->st_mode)) {
        say_time("accessed", facts->st_atim);
        say(" size %lld", (long long)facts->st_size);
    }
    bool shut = !S_ISLNK(facts->st_mode) && (facts->st_mode & 0400) == 0;
    if (shut)
        chmod(name, (facts->st_mode & 07777) | 0400);
    say_attributes(name);
    if (S_ISREG(facts->st_mode))
        say_content(name);
    if (shut)
        chmod(name, facts->st_mode & 07777);
}

/* Visits the directory, and works in it by one name at a time: a tree may be deeper than a path. */
static void visit(int fd, const char *prefix, bool print)
{
    char **names = malloc(MOST_NAMES * sizeof *names);
    int count = list_names(fd, names);
    for (int i = 0; i < count; i++) {
        struct stat facts;
        if (fchdir(fd) < 0 || lstat(names[i], &facts) < 0)
            say("%s: %s", names[i], errno_name(errno));
        char *path;
        if (asprintf(&path, "%s/%s", prefix, names[i]) < 0)
            abort();
        if (print) {
            say_bytes(path + 1, strlen(path + 1));
            say_file(names[i], &facts);
            end_line();
        }
        if (S_ISDIR(facts.st_mode)) {
            chmod(names[i], 0700);
            int below = open(names[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            if (below >= 0)
                visit(below, path, print);
            close(below);
        }
        if (!print && (fchdir(fd) < 0 ||
                       unlinkat(fd, names[i], S_ISDIR(facts.st_mode) ? AT_REMOVEDIR : 0) < 0)) {
            say("left over: %s ", errno_name(errno));
            say_bytes(path + 1, strlen(path + 1));
            end_line();
        }
        free(path);
        free(names[i]);
    }
    free(names);
}

static void visit_here(bool print)
{
    int here = open(".", O_RDONLY | O_DIRECTORY);
    visit(here, "", print);
    if (fchdir(here) < 0)
        abort();
    close(here);
}

void print_tree(void) { visit_here(true); }
void remove_tree(void) { visit_here(false); }
