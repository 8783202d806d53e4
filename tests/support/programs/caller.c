/* A client that uses only the system calls of the C library. It asks a name server over UDP or TCP
   and dials the answer. It is static, so no library can be loaded into it.

     caller udp|tcp SERVER NAME PORT      asks SERVER (an IPv4 address) for NAME, gets /hello from
                                          that address and prints the answer

   It prints "started" first. It prints the failed step last. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static _Noreturn void fail(const char *what)
{
    printf("%s: %s\n", what, strerrorname_np(errno));
    exit(1);
}

static int dial(int kind, struct in_addr address, int port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = address };
    struct timeval patience = { .tv_sec = 10 };
    int s = socket(AF_INET, kind, 0);
    if (s < 0)
        fail("socket");
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(s, (void *)&to, sizeof to))
        fail("connect");
    return s;
}

/* RFC 1035: one question for an address. Over a stream its length comes first. */
static size_t question(unsigned char *out, const char *name)
{
    static const unsigned char head[] = { 0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0 };
    static const unsigned char tail[] = { 0, 0, 1, 0, 1 };
    size_t at = 2;
    memcpy(out + at, head, sizeof head);
    at += sizeof head;
    while (*name) {
        size_t length = strcspn(name, ".");
        out[at++] = (unsigned char)length;
        memcpy(out + at, name, length);
        at += length;
        name += length + (name[length] == '.');
    }
    memcpy(out + at, tail, sizeof tail);
    at += sizeof tail;
    out[0] = (unsigned char)((at - 2) >> 8);
    out[1] = (unsigned char)(at - 2);
    return at;
}

int main(int argc, char **argv)
{
    unsigned char asked[512], said[512];
    struct in_addr server, found;
    char request[512], answer[4096];
    ssize_t got;
    if (argc != 5 || strlen(argv[3]) > 253 || inet_pton(AF_INET, argv[2], &server) != 1)
        return 2;
    setbuf(stdout, NULL);
    puts("started");
    int is_stream = !strcmp(argv[1], "tcp"), skipped = is_stream ? 0 : 2;
    size_t length = question(asked, argv[3]);
    int s = dial(is_stream ? SOCK_STREAM : SOCK_DGRAM, server, 53);
    if (write(s, asked + skipped, length - (size_t)skipped) < 0)
        fail("ask");
    if (is_stream && recv(s, said, 2, MSG_WAITALL) != 2)
        fail("ask");
    got = read(s, said, sizeof said);
    close(s);
    if (got < 12)
        fail("ask");
    if (said[3] & 15) {
        printf("no such name: %d\n", said[3] & 15);
        return 1;
    }
    if (got < (ssize_t)length + 14)
        fail("no address");
    /* One answer after the question: its name has two bytes, and the address is at its end. */
    memcpy(&found, said + length - 2 + 12, sizeof found);
    s = dial(SOCK_STREAM, found, atoi(argv[4]));
    int said_all = snprintf(request, sizeof request,
                            "GET /hello HTTP/1.0\r\nHost: %s\r\n\r\n", argv[3]);
    if (write(s, request, (size_t)said_all) != said_all)
        fail("send");
    while ((got = read(s, answer, sizeof answer)) > 0)
        fwrite(answer, 1, (size_t)got, stdout);
    if (got < 0)
        fail("receive");
    return 0;
}
