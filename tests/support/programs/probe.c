#include "probe.h"

int ok(const char *detail)
{
    printf(detail ? "ok %s\n" : "ok\n", detail);
    return 0;
}

int refused(void)
{
    const char *name = strerrorname_np(errno);
    if (name)
        printf("%s\n", name);
    else
        printf("errno %d\n", errno);
    return 1;
}

int print_result(long result)
{
    return result < 0 ? refused() : ok(NULL);
}

static const struct act *find(const struct act *acts, const char *name)
{
    for (; acts->name; acts++)
        if (strcmp(acts->name, name) == 0)
            return acts;
    return NULL;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc < 2) {
        fprintf(stderr, "usage: probe ACT [ARGUMENT…]\n");
        return 2;
    }
    const struct act *act = find(file_acts, argv[1]);
    if (!act)
        act = find(syscall_acts, argv[1]);
    if (!act)
        act = find(process_acts, argv[1]);
    if (!act)
        act = find(exec_acts, argv[1]);
    if (!act || argc - 2 < act->arguments) {
        fprintf(stderr, "probe: no such act, or too few arguments: %s\n", argv[1]);
        return 2;
    }
    puts("started");
    return act->run(argc - 2, argv + 2);
}
