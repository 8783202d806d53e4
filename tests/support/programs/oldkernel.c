/* Runs a command on a kernel that looks older, smaller or locked down.

     oldkernel [--no-landlock ERRNO] [--landlock-abi N] [--statfs-type HEX PATH]
               [--no-seccomp ERRNO] [--no-netns ERRNO] [--no-netfilter ERRNO] [--no-ipv6] -- CMD…

   --no-landlock E     the Landlock calls fail with errno E (38 ENOSYS before 5.13 or built
                       without; 95 EOPNOTSUPP not switched on at boot; 1 EPERM as under the filter
                       of a container engine that does not know them)
   --landlock-abi N    the version query answers N; a ruleset with rights newer than N is refused as
                       that kernel would refuse it (EINVAL), everything else goes to the real kernel
   --statfs-type T P   statfs and fstatfs on P, and below it, report file system type T (for NFS)
   --no-seccomp E      installing a filter fails with errno E (1 EPERM as in a locked-down
                       container, 38 ENOSYS)

   --no-netns E        network namespaces can not be made (28 ENOSPC: there may be none)
   --no-netfilter E    there is no socket to nf_tables (93 EPROTONOSUPPORT: built without)
   --no-ipv6           no socket of IPv6 can be made (built without, or ipv6.disable=1)

   A plain refusal is a filter action. Other answers come from this program, which stays as the
   owner of the listener. The command cannot see the difference. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "oldkernel knows x86_64 and aarch64"
#endif

static int landlock_errno, landlock_abi, seccomp_errno, netns_errno, netfilter_errno, no_ipv6;
static long statfs_type;
static const char *statfs_path;

static void die(const char *what)
{
    fprintf(stderr, "oldkernel: %s: %s\n", what, strerror(errno));
    exit(124);
}

/* ---- the filter ---- */

static struct sock_filter filter[64];
static unsigned short filter_length;

static void emit(uint16_t code, uint8_t jump_true, uint8_t jump_false, uint32_t k)
{
    filter[filter_length++] = (struct sock_filter){code, jump_true, jump_false, k};
}

static void load(size_t offset) { emit(BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset); }

static void answer_call(uint32_t call, uint32_t action)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call);
    emit(BPF_RET | BPF_K, 0, 0, action);
}

static void build_filter(void)
{
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, NATIVE);
    /* calls of another architecture are not judged */
    emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    load(offsetof(struct seccomp_data, nr));
    if (landlock_errno) {
        answer_call(SYS_landlock_create_ruleset, SECCOMP_RET_ERRNO | (uint32_t)landlock_errno);
        answer_call(SYS_landlock_add_rule, SECCOMP_RET_ERRNO | (uint32_t)landlock_errno);
        answer_call(SYS_landlock_restrict_self, SECCOMP_RET_ERRNO | (uint32_t)landlock_errno);
    } else if (landlock_abi)
        answer_call(SYS_landlock_create_ruleset, SECCOMP_RET_USER_NOTIF);
    if (statfs_path) {
        answer_call(SYS_statfs, SECCOMP_RET_USER_NOTIF);
        answer_call(SYS_fstatfs, SECCOMP_RET_USER_NOTIF);
    }
    if (seccomp_errno) {
        answer_call(SYS_seccomp, SECCOMP_RET_ERRNO | (uint32_t)seccomp_errno);
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_prctl);
        load(offsetof(struct seccomp_data, args[0])); /* little endian: the low half */
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, PR_SET_SECCOMP);
        emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (uint32_t)seccomp_errno);
        load(offsetof(struct seccomp_data, nr));
    }
    if (netns_errno) {
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_unshare);
        load(offsetof(struct seccomp_data, args[0]));
        emit(BPF_JMP | BPF_JSET | BPF_K, 0, 1, CLONE_NEWNET);
        emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (uint32_t)netns_errno);
        load(offsetof(struct seccomp_data, nr));
    }
    if (no_ipv6) {
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_socket);
        load(offsetof(struct seccomp_data, args[0]));
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, AF_INET6);
        emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
        load(offsetof(struct seccomp_data, nr));
    }
    if (netfilter_errno) {
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_socket);
        load(offsetof(struct seccomp_data, args[0]));
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, AF_NETLINK);
        load(offsetof(struct seccomp_data, args[2]));
        emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, NETLINK_NETFILTER);
        emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (uint32_t)netfilter_errno);
    }
    emit(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
}

/* ---- made-up answers ---- */

static const uint64_t file_rights[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff, 0xffff, 0xffff};

static int64_t old_create_ruleset(int memory, const struct seccomp_notif *request, int *pass_on)
{
    uint64_t address = request->data.args[0], size = request->data.args[1];
    uint64_t flags = request->data.args[2];
    if (flags == LANDLOCK_CREATE_RULESET_VERSION)
        return landlock_abi;
    uint64_t wanted[3] = {0}; /* handled_access_fs, handled_access_net, scoped */
    size_t length = size < sizeof wanted ? size : sizeof wanted;
    if (flags || pread(memory, wanted, length, (off_t)address) < 0) {
        *pass_on = 1; /* the real kernel finds the same fault */
        return 0;
    }
    int known = landlock_abi < 7 ? landlock_abi : 7;
    if (wanted[0] & ~file_rights[known] || (wanted[1] && landlock_abi < 4) ||
        (wanted[2] && landlock_abi < 6))
        return -EINVAL;
    *pass_on = 1;
    return 0;
}

static int below(const char *path, const char *root)
{
    size_t length = strlen(root);
    return strncmp(path, root, length) == 0 && (path[length] == 0 || path[length] == '/');
}

static int64_t strange_statfs(int memory, const struct seccomp_notif *request, int *pass_on)
{
    char name[64], path[4096] = "";
    if (request->data.nr == SYS_fstatfs)
        snprintf(name, sizeof name, "/proc/%u/fd/%d", request->pid, (int)request->data.args[0]);
    else if (pread(memory, path, sizeof path - 1, (off_t)request->data.args[0]) < 0) {
        *pass_on = 1;
        return 0;
    }
    if (!*path) {
        ssize_t length = readlink(name, path, sizeof path - 1);
        path[length < 0 ? 0 : length] = 0;
    }
    struct statfs facts;
    if (!below(path, statfs_path) || statfs(path, &facts) < 0) {
        *pass_on = 1;
        return 0;
    }
    facts.f_type = statfs_type;
    return pwrite(memory, &facts, sizeof facts, (off_t)request->data.args[1]) < 0 ? -EFAULT : 0;
}

static void serve(int listener)
{
    struct seccomp_notif request;
    memset(&request, 0, sizeof request);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) < 0)
        return; /* the caller died or was interrupted */
    char name[64];
    snprintf(name, sizeof name, "/proc/%u/mem", request.pid);
    int memory = open(name, O_RDWR | O_CLOEXEC), pass_on = 0;
    int64_t result = -EACCES; /* unreadable memory is a failure, never an answer */
    if (memory >= 0) {
        result = request.data.nr == SYS_landlock_create_ruleset
                     ? old_create_ruleset(memory, &request, &pass_on)
                     : strange_statfs(memory, &request, &pass_on);
        close(memory);
    }
    struct seccomp_notif_resp response = {.id = request.id};
    if (pass_on)
        response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    else if (result < 0)
        response.error = (int)result;
    else
        response.val = result;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

/* ---- handing over the listener ---- */

static void send_descriptor(int channel, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(channel, &message, 0) < 0)
        die("sendmsg");
}

static int receive_descriptor(int channel)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    int fd = -1;
    if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void run_command(int channel, char **command)
{
    struct sock_fprog program = {filter_length, filter};
    int listening = (landlock_abi && !landlock_errno) || statfs_path;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        die("no_new_privs");
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                            listening ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0, &program);
    if (listener < 0)
        die("seccomp");
    if (listening) {
        send_descriptor(channel, (int)listener);
        close((int)listener);
    }
    close(channel);
    execvp(*command, command);
    die(*command);
}

static char **read_options(char **word)
{
    for (; *word && strcmp(*word, "--"); word++) {
        if (!strcmp(*word, "--no-landlock") && word[1])
            landlock_errno = atoi(*++word);
        else if (!strcmp(*word, "--landlock-abi") && word[1])
            landlock_abi = atoi(*++word);
        else if (!strcmp(*word, "--no-seccomp") && word[1])
            seccomp_errno = atoi(*++word);
        else if (!strcmp(*word, "--no-netns") && word[1])
            netns_errno = atoi(*++word);
        else if (!strcmp(*word, "--no-ipv6"))
            no_ipv6 = 1;
        else if (!strcmp(*word, "--no-netfilter") && word[1])
            netfilter_errno = atoi(*++word);
        else if (!strcmp(*word, "--statfs-type") && word[1] && word[2]) {
            statfs_type = strtol(*++word, NULL, 16);
            statfs_path = *++word;
        } else {
            fprintf(stderr, "oldkernel: unknown option %s\n", *word);
            exit(124);
        }
    }
    if (!*word || !word[1]) {
        fprintf(stderr, "usage: oldkernel [OPTIONS] -- CMD…\n");
        exit(124);
    }
    return word + 1;
}

int main(int argc, char **argv)
{
    (void)argc;
    char **command = read_options(argv + 1);
    build_filter();
    int channel[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) < 0)
        die("socketpair");
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        close(channel[0]);
        run_command(channel[1], command);
    }
    close(channel[1]);
    int listener = receive_descriptor(channel[0]);
    if (listener >= 0)
        /* the loop ends when the last process under the filter has ended (POLLHUP) */
        for (struct pollfd ready = {.fd = listener, .events = POLLIN}; poll(&ready, 1, -1) >= 0;) {
            if (ready.revents & POLLIN)
                serve(listener);
            else if (ready.revents)
                break;
        }
    int status;
    if (waitpid(child, &status, 0) < 0)
        die("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
