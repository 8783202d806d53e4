/* Times commands, each started the same way: posix_spawn, wait4, monotonic clock.

     spawn ROUNDS FIRST-FD CASE [:: CASE…]

   Every round runs every case once, so that a busy moment of the machine affects all of them.
   Each round has another order, because the kernel cleans up after a case while the next one
   runs. Prints one line of nanoseconds per case. Descriptors from FIRST-FD on are plans that all
   starts share. They are set back to their beginning before each start. The output of the
   commands is discarded. A command that fails ends the measurement. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
enum { MOST_CASES = 16 };

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* The same orders in every measurement (xorshift). */
static unsigned below(unsigned limit)
{
    static unsigned state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % limit;
}

static long long time_one(char **argv, const posix_spawn_file_actions_t *quiet)
{
    pid_t child;
    int status;
    long long start = now();
    int error = posix_spawn(&child, argv[0], quiet, NULL, argv, environ);
    if (error) {
        fprintf(stderr, "spawn: %s: %s\n", argv[0], strerror(error));
        exit(1);
    }
    if (wait4(child, &status, 0, NULL) != child || status != 0) {
        fprintf(stderr, "spawn: %s ended with status 0x%x\n", argv[0], status);
        exit(1);
    }
    return now() - start;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "usage: spawn ROUNDS FIRST-FD CASE [:: CASE…]\n"), 2;
    int rounds = atoi(argv[1]), first_fd = atoi(argv[2]), cases = 0;
    char **start[MOST_CASES];
    start[cases++] = argv + 3;
    for (char **word = argv + 3; *word; word++)
        if (strcmp(*word, "::") == 0) {
            *word = NULL;
            if (cases == MOST_CASES)
                return fprintf(stderr, "spawn: too many cases\n"), 2;
            start[cases++] = word + 1;
        }
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    long long *taken = calloc((size_t)(rounds * cases), sizeof *taken);
    int order[MOST_CASES];
    for (int i = 0; i < cases; i++)
        order[i] = i;
    for (int round = 0; round < rounds; round++) {
        for (int i = cases - 1; i > 0; i--) {
            int other = (int)below((unsigned)i + 1), moved = order[i];
            order[i] = order[other];
            order[other] = moved;
        }
        for (int turn = 0; turn < cases; turn++) {
            int i = order[turn];
            for (int fd = first_fd; lseek(fd, 0, SEEK_SET) == 0; fd++)
                ;
            taken[i * rounds + round] = time_one(start[i], &quiet);
        }
    }
    for (int i = 0; i < cases; i++) {
        for (int round = 0; round < rounds; round++)
            printf("%lld ", taken[i * rounds + round]);
        putchar('\n');
    }
    return 0;
}
