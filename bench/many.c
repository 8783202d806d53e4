/* Starts one program many times, one after the other. Prints the average nanoseconds from start to
   end.

     many COUNT PROGRAM [ARGUMENT…] */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return fprintf(stderr, "usage: many COUNT PROGRAM [ARGUMENT…]\n"), 2;
    int count = atoi(argv[1]);
    long long start = now();
    for (int i = 0; i < count; i++) {
        pid_t child;
        int status, error = posix_spawn(&child, argv[2], NULL, NULL, argv + 2, environ);
        if (error)
            return fprintf(stderr, "many: %s: %s\n", argv[2], strerror(error)), 1;
        if (waitpid(child, &status, 0) != child || status)
            return fprintf(stderr, "many: %s ended with status 0x%x\n", argv[2], status), 1;
    }
    printf("%lld\n", (now() - start) / count);
    return 0;
}
