/* Acts on files. Each leaves a trace that the test checks from outside. */
#include "probe.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

static int print_start_of(int fd)
{
    char text[65];
    ssize_t length = read(fd, text, sizeof text - 1);
    if (length < 0)
        return refused();
    text[length] = 0;
    text[strcspn(text, "\n")] = 0;
    return ok(text);
}

static int read_file(int count, char **argument)
{
    (void)count;
    int fd = open(argument[0], O_RDONLY | O_NONBLOCK);
    return fd < 0 ? refused() : print_start_of(fd);
}

/* The same read through an inherited descriptor: "read-below FD NAME". */
static int read_below(int count, char **argument)
{
    (void)count;
    int fd = openat(atoi(argument[0]), argument[1], O_RDONLY);
    return fd < 0 ? refused() : print_start_of(fd);
}

static int list(int count, char **argument)
{
    (void)count;
    DIR *directory = opendir(argument[0]);
    if (!directory)
        return refused();
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.')
            return ok(entry->d_name);
    return ok(NULL);
}

static int write_to(const char *path, int flags)
{
    int fd = open(path, O_WRONLY | flags, 0644);
    if (fd < 0)
        return refused();
    return print_result(write(fd, "probe\n", 6));
}

static int create(int count, char **argument)
{
    (void)count;
    return write_to(argument[0], O_CREAT | O_EXCL);
}

static int overwrite(int count, char **argument)
{
    (void)count;
    return write_to(argument[0], 0);
}

static int append(int count, char **argument)
{
    (void)count;
    return write_to(argument[0], O_APPEND);
}

static int open_truncate(int count, char **argument)
{
    (void)count;
    return write_to(argument[0], O_TRUNC);
}

static int truncate_path(int count, char **argument)
{
    (void)count;
    return print_result(truncate(argument[0], 0));
}

static int unlink_path(int count, char **argument)
{
    (void)count;
    return print_result(unlink(argument[0]));
}

static int rmdir_path(int count, char **argument)
{
    (void)count;
    return print_result(rmdir(argument[0]));
}

static int mkdir_path(int count, char **argument)
{
    (void)count;
    return print_result(mkdir(argument[0], 0755));
}

static int mkfifo_path(int count, char **argument)
{
    (void)count;
    return print_result(mkfifo(argument[0], 0644));
}

static int symlink_path(int count, char **argument)
{
    (void)count;
    return print_result(symlink(argument[0], argument[1]));
}

static int link_path(int count, char **argument)
{
    (void)count;
    return print_result(link(argument[0], argument[1]));
}

static int rename_path(int count, char **argument)
{
    (void)count;
    return print_result(rename(argument[0], argument[1]));
}

static int chmod_path(int count, char **argument)
{
    (void)count;
    return print_result(chmod(argument[0], 0666));
}

static int exchange(int count, char **argument)
{
    (void)count;
    return print_result(syscall(SYS_renameat2, AT_FDCWD, argument[0], AT_FDCWD, argument[1],
                                2u /* RENAME_EXCHANGE */));
}

static int mksocket(int count, char **argument)
{
    (void)count;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argument[0], sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return print_result(bind(fd, (struct sockaddr *)&address, sizeof address));
}

/* Creates a file without a name in one directory and links it in another:
   "tmpfile-link DIRECTORY NEW-NAME". */
static int tmpfile_link(int count, char **argument)
{
    (void)count;
    int fd = open(argument[0], O_TMPFILE | O_RDWR, 0644);
    if (fd < 0)
        return refused();
    if (write(fd, "probe\n", 6) < 0)
        return refused();
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return print_result(linkat(AT_FDCWD, name, AT_FDCWD, argument[1], AT_SYMLINK_FOLLOW));
}

static int execute(int count, char **argument)
{
    (void)count;
    execv(argument[0], argument);
    return refused();
}

/* Through a directory descriptor opened with O_PATH, which Landlock does not restrict. */
static int read_by_opath(int count, char **argument)
{
    (void)count;
    int directory = open(argument[0], O_PATH | O_DIRECTORY);
    if (directory < 0)
        return refused();
    int fd = openat(directory, argument[1], O_RDONLY);
    return fd < 0 ? refused() : print_start_of(fd);
}

static int reopen_opath(int count, char **argument)
{
    (void)count;
    int handle = open(argument[0], O_PATH);
    if (handle < 0)
        return refused();
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
    int fd = open(name, O_RDONLY);
    return fd < 0 ? refused() : print_start_of(fd);
}

static int chdir_read(int count, char **argument)
{
    (void)count;
    if (chdir(argument[0]) < 0)
        return refused();
    int fd = open(argument[1], O_RDONLY);
    return fd < 0 ? refused() : print_start_of(fd);
}

static int by_handle(int count, char **argument)
{
    (void)count;
    union {
        struct file_handle handle;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } found = {.handle.handle_bytes = MAX_HANDLE_SZ};
    int mount_id;
    if (name_to_handle_at(AT_FDCWD, argument[0], &found.handle, &mount_id, 0) < 0)
        return refused();
    int root = open(argument[1], O_RDONLY | O_DIRECTORY);
    if (root < 0)
        return refused();
    int fd = open_by_handle_at(root, &found.handle, O_RDONLY);
    return fd < 0 ? refused() : print_start_of(fd);
}

/* Prints the open descriptors of this program: "0,1,2". */
static int descriptors(int count, char **argument)
{
    (void)count, (void)argument;
    char text[256] = "";
    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) != -1)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", *text ? "," : "", fd);
    return ok(text);
}

const struct act file_acts[] = {
    {"read", 1, read_file},
    {"read-below", 2, read_below},
    {"read-by-opath", 2, read_by_opath},
    {"reopen-opath", 1, reopen_opath},
    {"chdir-read", 2, chdir_read},
    {"list", 1, list},
    {"create", 1, create},
    {"overwrite", 1, overwrite},
    {"append", 1, append},
    {"open-truncate", 1, open_truncate},
    {"truncate", 1, truncate_path},
    {"unlink", 1, unlink_path},
    {"rmdir", 1, rmdir_path},
    {"mkdir", 1, mkdir_path},
    {"mkfifo", 1, mkfifo_path},
    {"mksocket", 1, mksocket},
    {"symlink", 2, symlink_path},
    {"link", 2, link_path},
    {"rename", 2, rename_path},
    {"exchange", 2, exchange},
    {"chmod", 1, chmod_path},
    {"tmpfile-link", 2, tmpfile_link},
    {"execute", 1, execute},
    {"by-handle", 2, by_handle},
    {"descriptors", 0, descriptors},
    {NULL, 0, NULL},
};
