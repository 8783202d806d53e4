/* Starts many commands at once and times how long it takes until all of them run.

     crowd COUNT COMMAND…

   Starts the command COUNT times, each with the same pipes. A command prints one line when it runs,
   and continues until its input ends. Prints the nanoseconds until the last line, then waits for a
   line on its own input. */
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
enum { MOST = 200 };

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[1]) : 0, said[2], go_on[2];
    pid_t children[MOST];
    if (count < 1 || count > MOST)
        return fprintf(stderr, "usage: crowd COUNT COMMAND…\n"), 2;
    if (pipe2(said, O_CLOEXEC) < 0 || pipe2(go_on, O_CLOEXEC) < 0)
        return perror("crowd: pipe"), 1;
    posix_spawn_file_actions_t pipes;
    posix_spawn_file_actions_init(&pipes);
    posix_spawn_file_actions_adddup2(&pipes, go_on[0], 0);
    posix_spawn_file_actions_adddup2(&pipes, said[1], 1);
    long long start = now();
    for (int i = 0; i < count; i++) {
        int error = posix_spawn(&children[i], argv[2], &pipes, NULL, argv + 2, environ);
        if (error)
            return fprintf(stderr, "crowd: %s: %s\n", argv[2], strerror(error)), 1;
    }
    close(said[1]);
    for (int heard = 0; heard < count;) {
        char buffer[256];
        ssize_t length = read(said[0], buffer, sizeof buffer);
        if (length <= 0)
            return fprintf(stderr, "crowd: only %d of %d started\n", heard, count), 1;
        for (ssize_t i = 0; i < length; i++)
            heard += buffer[i] == '\n';
    }
    printf("%lld\n", now() - start);
    fflush(stdout);
    getchar();
    close(go_on[1]);
    for (int i = 0; i < count; i++)
        waitpid(children[i], NULL, 0);
    return 0;
}
