/* The ends of a network measurement, each an event loop of one thread.

     wire serve ADDRESS PORT                answers HTTP: /<bytes> with that many bytes, then closes
     wire relay ADDRESS PORT TARGET         passes connections on to the port TARGET by splice: the
                                            fastest that a filter could be
     wire bulk ADDRESS PORT MEBIBYTES       reads that much over one connection, prints MiB/s
     wire rate ADDRESS PORT COUNT AT_ONCE   opens COUNT connections, prints the number per second
     wire each ADDRESS PORT COUNT OTHERS    connects and sends a request COUNT times, one after the
                                            other, with any result, while OTHERS processes sleep;
                                            prints the number per second
     wire names ADDRESS HOSTS COUNT         asks COUNT times for one of ten of the names h0.example
                                            to h<HOSTS - 1>.example, one question after the other;
                                            prints the answers per second

   For bulk and rate the address may be a name. The question for it goes to a server that does
   not exist. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM (1 << 16)
#define PIPE (1 << 20)
#define MOST 65536

static char zeros[ROOM];

static void fail(const char *what)
{
    fprintf(stderr, "wire: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static struct sockaddr_in at(const char *address, int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
    if (inet_pton(AF_INET, address, &a.sin_addr) != 1)
        fail(address);
    return a;
}

/* One question for the address of a name. The answer is at the end of the message. */
static int ask(int s, const char *name, struct in_addr *found)
{
    char message[512] = "\0\0\1\0\0\1\0\0\0\0\0";
    size_t at = 12;
    for (const char *label = name, *end; *label; label = *end ? end + 1 : end) {
        end = strchrnul(label, '.');
        message[at++] = (char)(end - label);
        memcpy(message + at, label, (size_t)(end - label));
        at += (size_t)(end - label);
    }
    memcpy(message + at, "\0\0\1\0\1", 5);
    if (send(s, message, at + 5, 0) < 0)
        fail("send");
    ssize_t length = recv(s, message, sizeof message, 0);
    if (length < 16 || message[3] & 15 || message[7] != 1)
        return -1;
    memcpy(found, message + length - 4, 4);
    return 0;
}

static int asking(const char *server)
{
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = at(server, 53);
    if (connect(s, (void *)&a, sizeof a))
        fail("connect");
    return s;
}

static struct sockaddr_in to(const char *host, int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
        int s = asking("192.0.2.53");
        if (ask(s, host, &a.sin_addr))
            fail(host);
        close(s);
    }
    return a;
}

static int request(char *text, const char *host, int port, long long bytes)
{
    return snprintf(text, 512,
                    "GET /%lld HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n", bytes, host,
                    port);
}

static int tcp(void)
{
    int on = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        fail("socket");
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return s;
}

static int listener(const char *address, int port)
{
    int on = 1, s = tcp();
    struct sockaddr_in a = at(address, port);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s, (void *)&a, sizeof a) || listen(s, 4096))
        fail("listen");
    return s;
}

static void watch(int epoll, int fd, unsigned events, long key)
{
    struct epoll_event e = { .events = events, .data.u64 = (unsigned long)key };
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e))
        fail("epoll_ctl");
}

/* ---- serve ---- */

static struct { long long left; } served[MOST];

static void push(int epoll, int fd)
{
    while (served[fd].left > 0) {
        ssize_t n = write(fd, zeros, served[fd].left < ROOM ? (size_t)served[fd].left : ROOM);
        if (n < 0 && errno == EAGAIN) {
            struct epoll_event e = { .events = EPOLLOUT, .data.u64 = (unsigned long)fd };
            epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &e);
            return;
        }
        if (n <= 0)
            break;
        served[fd].left -= n;
    }
    close(fd);
}

static void serve(const char *address, int port)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), listening = listener(address, port), on = 1;
    watch(epoll, listening, EPOLLIN, listening);
    for (;;) {
        struct epoll_event events[256];
        int count = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < count; i++) {
            int fd = (int)events[i].data.u64;
            if (fd == listening) {
                int flags = SOCK_CLOEXEC | SOCK_NONBLOCK;
                for (int c; (c = accept4(listening, NULL, NULL, flags)) >= 0;) {
                    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                    served[c].left = -1;
                    watch(epoll, c, EPOLLIN, c);
                }
            } else if (served[fd].left > 0) {
                push(epoll, fd);
            } else {
                char line[1024] = "";
                ssize_t n = read(fd, line, sizeof line - 1);
                if (n < 0 && errno == EAGAIN)
                    continue;
                if (n <= 0) {
                    close(fd);
                    continue;
                }
                char *path = strchr(line, '/');
                served[fd].left = path ? atoll(path + 1) : 0;
                int length = snprintf(line, sizeof line,
                                      "HTTP/1.1 200 OK\r\nContent-Length: %lld\r\n"
                                      "Connection: close\r\n\r\n",
                                      served[fd].left);
                if (write(fd, line, (size_t)length) != length)
                    served[fd].left = 0;
                push(epoll, fd);
            }
        }
    }
}

/* ---- relay: two directions of each pair, a pipe for each ---- */

static struct { int to, in, out; long held; int ended, pending; } way[MOST];

static void drop(int fd)
{
    int other = way[fd].to;
    for (int i = 0; i < 2; i++, fd = other) {
        close(way[fd].in);
        close(way[fd].out);
        close(fd);
        way[fd].to = -1;
    }
}

/* Moves bytes from fd to its other end. Returns 0 when there is nothing more to do now. */
static int flow(int fd)
{
    int to = way[fd].to;
    for (;;) {
        if (!way[fd].held && !way[fd].ended) {
            ssize_t n = splice(fd, NULL, way[fd].in, NULL, PIPE, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
            if (n < 0 && errno == EAGAIN)
                return 0;
            if (n < 0)
                return -1;
            if (n == ROOM) /* the pipe is full: a larger one is worth its cost now */
                fcntl(way[fd].in, F_SETPIPE_SZ, PIPE);
            way[fd].ended = n == 0;
            way[fd].held = n;
        }
        if (way[fd].held) {
            ssize_t n = splice(way[fd].out, NULL, to, NULL, (size_t)way[fd].held,
                               SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
            if (n < 0 && errno == EAGAIN)
                return 0;
            if (n <= 0)
                return -1;
            way[fd].held -= n;
        } else if (way[fd].ended) {
            if (way[fd].ended == 1)
                shutdown(to, SHUT_WR);
            way[fd].ended = 2;
            return way[to].ended == 2 ? -1 : 0;
        }
    }
}

static void relay(const char *address, int port, int target)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), listening = listener(address, port), on = 1;
    struct sockaddr_in up = at(address, target);
    watch(epoll, listening, EPOLLIN, listening);
    for (;;) {
        struct epoll_event events[256];
        int count = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < count; i++) {
            int fd = (int)events[i].data.u64;
            if (fd != listening) {
                if (way[fd].to < 0)
                    continue;
                int other = way[fd].to;
                if (flow(fd) < 0 || (way[fd].to >= 0 && flow(other) < 0))
                    drop(fd);
                continue;
            }
            for (int c; (c = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
                int s = tcp(), ends[2] = { c, s };
                setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                if (connect(s, (void *)&up, sizeof up) && errno != EINPROGRESS)
                    fail("connect");
                for (int e = 0; e < 2; e++) {
                    int p[2];
                    if (pipe2(p, O_CLOEXEC | O_NONBLOCK))
                        fail("pipe");
                    way[ends[e]].to = ends[!e];
                    way[ends[e]].in = p[1];
                    way[ends[e]].out = p[0];
                    way[ends[e]].held = way[ends[e]].ended = 0;
                    watch(epoll, ends[e], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, ends[e]);
                }
            }
        }
    }
}

/* ---- the client's end ---- */

static void bulk(const char *address, int port, long long mebibytes)
{
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = to(address, port);
    static char buffer[1 << 18];
    char text[512] = "";
    long long got = 0;
    double start = now();
    if (connect(s, (void *)&a, sizeof a))
        fail("connect");
    int length = request(text, address, port, mebibytes << 20);
    if (write(s, text, (size_t)length) != length)
        fail("write");
    memset(text, 0, sizeof text);
    for (size_t n = 0; !strstr(text, "\r\n\r\n"); n++)
        if (n == sizeof text - 1 || read(s, text + n, 1) != 1)
            fail("no head of an answer");
    for (ssize_t n; (n = read(s, buffer, sizeof buffer)) > 0;)
        got += n;
    if (got != mebibytes << 20)
        fail("the bytes are not all there");
    printf("%.1f\n", (double)mebibytes / (now() - start));
}

static void rate(const char *address, int port, int count, int at_once)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), started = 0, ended = 0;
    struct sockaddr_in a = to(address, port);
    static int asked[MOST], got[MOST];
    static char answers[MOST][1024];
    char text[512];
    int length = request(text, address, port, 100);
    double start = now();
    for (;;) {
        for (; started < count && started - ended < at_once; started++) {
            int s = tcp();
            if (connect(s, (void *)&a, sizeof a) && errno != EINPROGRESS)
                fail("connect");
            asked[s] = got[s] = 0;
            watch(epoll, s, EPOLLIN | EPOLLOUT | EPOLLET, s);
        }
        if (ended == count)
            break;
        struct epoll_event events[256];
        int ready = epoll_wait(epoll, events, 256, 10000);
        if (ready <= 0)
            fail("nothing happens any more");
        for (int i = 0; i < ready; i++) {
            int s = (int)events[i].data.u64;
            if (!asked[s] && events[i].events & EPOLLOUT) {
                if (write(s, text, (size_t)length) != length)
                    fail("write");
                asked[s] = 1;
            }
            for (;;) {
                ssize_t n = read(s, answers[s] + got[s], sizeof answers[s] - (size_t)got[s]);
                if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
                    break;
                if (n < 0)
                    fail("read");
                got[s] += (int)n;
                if (n == 0) {
                    char *body = memmem(answers[s], (size_t)got[s], "\r\n\r\n", 4);
                    if (!body || answers[s] + got[s] - body != 104 ||
                        memcmp(answers[s], "HTTP/1.1 200", 12))
                        fail("an answer is not whole");
                    close(s);
                    ended++;
                    break;
                }
            }
        }
    }
    printf("%.1f\n", count / (now() - start));
}

/* The first connection is not counted: it waits until the server runs. */
static void each(const char *address, int port, int count, int others)
{
    struct sockaddr_in a = at(address, port);
    char text[512], answer[4096];
    int length = request(text, address, port, 100);
    double start = 0;
    for (int i = 0; i < others; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pause();
            _exit(0);
        }
    for (int i = 0; i <= count; i++) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(s, (void *)&a, sizeof a) == 0 && write(s, text, (size_t)length) == length)
            while (read(s, answer, sizeof answer) > 0)
                ;
        close(s);
        if (i == 0)
            start = now();
    }
    printf("%.1f\n", count / (now() - start));
}

/* The first answer is not counted: it waits until the server runs. */
static void names(const char *address, int hosts, int count)
{
    int s = asking(address);
    double start = 0;
    for (int i = 0; i <= count; i++) {
        char name[32];
        struct in_addr found;
        snprintf(name, sizeof name, "h%d.example", i % 10 * (hosts / 10));
        if (ask(s, name, &found))
            fail("an answer is not whole");
        if (i == 0)
            start = now();
    }
    printf("%.1f\n", count / (now() - start));
}

int main(int argc, char **argv)
{
    struct rlimit most;
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max < MOST ? most.rlim_max : MOST;
    setrlimit(RLIMIT_NOFILE, &most);
    if (argc == 4 && !strcmp(argv[1], "serve"))
        serve(argv[2], atoi(argv[3]));
    else if (argc == 5 && !strcmp(argv[1], "relay"))
        relay(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (argc == 5 && !strcmp(argv[1], "bulk"))
        bulk(argv[2], atoi(argv[3]), atoll(argv[4]));
    else if (argc == 6 && !strcmp(argv[1], "rate"))
        rate(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else if (argc == 6 && !strcmp(argv[1], "each"))
        each(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else if (argc == 5 && !strcmp(argv[1], "names"))
        names(argv[2], atoi(argv[3]), atoi(argv[4]));
    else
        return fprintf(stderr, "usage: wire serve | relay | bulk | rate | each | names …\n"), 2;
    return 0;
}
