/* Measures how long a new secret can be read. The host replaces a denied name, and this program
   tries to open it from inside.

     window NAME BUSY

   Each line of input is the next secret. The program prints "looking" and opens NAME in a loop,
   until it has read the secret and was then refused. It prints two times in nanoseconds: the
   last read, and the first refusal after it. It prints "0 0" if it cannot read the secret within
   PATIENCE. BUSY children create and remove files meanwhile. The clock is CLOCK_MONOTONIC, which
   all processes of the machine share. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const long long PATIENCE = 100 * 1000 * 1000;

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void work(int number)
{
    char name[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (unsigned turn = 0;; turn++) {
        snprintf(name, sizeof name, "work-%d-%u", number, turn % 64);
        int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
        unlink(name);
    }
}

static void look(const char *name, const char *secret)
{
    long long start = now(), read_last = 0;
    for (;;) {
        char text[64] = "";
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ssize_t length = read(fd, text, sizeof text - 1);
            close(fd);
            if (length > 0 && strcmp(text, secret) == 0)
                read_last = now();
        } else if (errno == EACCES && read_last) {
            printf("%lld %lld\n", read_last, now());
            return;
        }
        if (!read_last && now() - start > PATIENCE) {
            puts("0 0");
            return;
        }
    }
}

int main(int argc, char **argv)
{
    char secret[64];
    setlinebuf(stdout);
    for (int child = argc > 2 ? atoi(argv[2]) : 0; child > 0; child--)
        if (fork() == 0)
            work(child);
    while (fgets(secret, sizeof secret, stdin)) {
        puts("looking");
        look(argv[1], secret);
    }
    return 0;
}
