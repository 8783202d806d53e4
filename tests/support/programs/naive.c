/* The control of the races: a gate that reads the arguments of a caller and then lets the kernel
   continue. The kernel reads all of them again.

     naive PROGRAM WORD DIRECTORY -- COMMAND…

   It denies PROGRAM (also as an interpreter or a loader), every program whose first argument is
   WORD, and every program that is started in DIRECTORY. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
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
#include <sys/wait.h>
#include <poll.h>
#include <unistd.h>

static struct stat denied;
static const char *word, *directory;

static int read_text(pid_t pid, unsigned long long address, char *room, size_t most)
{
    for (size_t got = 0; got < most;) {
        size_t piece = 4096 - (address + got) % 4096;
        struct iovec here = {room + got, piece < most - got ? piece : most - got};
        struct iovec there = {(void *)(address + got), here.iov_len};
        ssize_t count = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (count <= 0)
            return -1;
        if (memchr(room + got, 0, (size_t)count))
            return 0;
        got += (size_t)count;
    }
    return -1;
}

/* The loader that a program names, if there is one. */
static int loader_of(int fd, char *room, size_t most)
{
    Elf64_Ehdr head;
    Elf64_Phdr part;
    if (pread(fd, &head, sizeof head, 0) != sizeof head ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
        return 0;
    for (int i = 0; i < head.e_phnum; i++)
        if (pread(fd, &part, sizeof part, (off_t)(head.e_phoff + i * sizeof part)) == sizeof part &&
            part.p_type == PT_INTERP)
            return part.p_filesz <= most && pread(fd, room, part.p_filesz, (off_t)part.p_offset) ==
                                                (ssize_t)part.p_filesz;
    return 0;
}

static int is_denied(const char *path)
{
    struct stat found;
    if (stat(path, &found) < 0)
        return 0;
    if (found.st_dev == denied.st_dev && found.st_ino == denied.st_ino)
        return 1;
    char line[256] = "", loader[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    int has_loader = loader_of(fd, loader, sizeof loader);
    close(fd);
    if (has_loader)
        return is_denied(loader);
    if (length < 3 || line[0] != '#' || line[1] != '!')
        return 0;
    line[2 + strcspn(line + 2, " \t\n")] = 0;
    return is_denied(line + 2);
}

static int judge(const struct seccomp_notif *call)
{
    char path[4096], link[64], where[4096] = "";
    pid_t pid = (pid_t)call->pid;
    if (read_text(pid, call->data.args[0], path, sizeof path) < 0)
        return -1;
    snprintf(link, sizeof link, "/proc/%d/cwd", pid);
    (void)!readlink(link, where, sizeof where - 1);
    if (strcmp(where, directory) == 0 || is_denied(path))
        return -1;
    unsigned long long words[2] = {0};
    char text[4096];
    struct iovec here = {words, sizeof words}, there = {(void *)call->data.args[1], sizeof words};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) != sizeof words)
        return -1;
    if (words[1] && (read_text(pid, words[1], text, sizeof text) < 0 || strcmp(text, word) == 0))
        return -1;
    return 0;
}

static int listen_to_execs(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                        &filter);
}

int main(int argc, char **argv)
{
    if (argc < 6 || stat(argv[1], &denied) < 0)
        return 2;
    word = argv[2], directory = argv[3];
    /* Descriptors are shared until exec, so the listener is available here. */
    volatile int *listener =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *listener = -1;
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        int fd = listen_to_execs();
        *listener = fd < 0 ? -2 : fd;
        if (fd >= 0)
            execvp(argv[5], argv + 5);
        _exit(126);
    }
    while (*listener == -1)
        sched_yield();
    if (child < 0 || *listener < 0)
        return 3;
    for (int status;;) {
        struct pollfd ready = {*listener, POLLIN, 0};
        poll(&ready, 1, 100);
        if (ready.revents & POLLIN) {
            struct seccomp_notif call = {0};
            if (ioctl(*listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
                continue;
            struct seccomp_notif_resp answer = {.id = call.id};
            if (judge(&call) < 0)
                answer.error = -13; /* EACCES */
            else
                answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
            ioctl(*listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
        } else if (waitpid(child, &status, WNOHANG) == child) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
    }
}
