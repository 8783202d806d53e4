/* The limit: the cost of applying the Landlock and seccomp rules of a plan, and nothing else.

   The rules are compiled in (rules.h, which fixture.py writes from the plan that the core gets).
   So there is no file to read, no check, no journal and no supervisor. No sandbox with these
   rules that starts with the same C library can be faster. Without a C library (bare.c) none can
   be faster. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct rule {
    const char *path;
    uint64_t rights;
};
#include "rules.h" /* handled, scoped, rules[], filter[] */

static const uint64_t rights_of_a_file =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE |
    (1ULL << 14) /* truncate */ |
                                         (1ULL << 15) /* ioctl_dev */;

static int fail(const char *what)
{
    perror(what);
    return 125;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 125;
    struct {
        uint64_t files, net, scoped;
    } attributes = {handled, 0, scoped};
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0);
    if (ruleset < 0)
        return fail("landlock_create_ruleset");
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        int fd = open(rules[i].path, O_PATH | O_CLOEXEC);
        if (fd < 0)
            continue; /* optional grants */
        struct stat facts;
        fstat(fd, &facts);
        struct landlock_path_beneath_attr beneath = {
            .allowed_access = S_ISDIR(facts.st_mode) ? rules[i].rights
                                                     : rules[i].rights & rights_of_a_file,
            .parent_fd = fd,
        };
        if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) < 0)
            return fail(rules[i].path);
        close(fd);
    }
    struct sock_fprog program = {sizeof filter / sizeof *filter, (struct sock_filter *)filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return fail("no_new_privs");
    if (syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
        return fail("landlock_restrict_self");
    if (syscall(SYS_close_range, 3, ~0U, 0) < 0)
        return fail("close_range");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
        return fail("seccomp");
    execv(argv[1], argv + 1);
    return fail(argv[1]);
}
