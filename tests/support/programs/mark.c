/* A program that can be seen to have run: it adds one line to the file `ran` of its working directory, its own name
   (given when it is compiled) and its arguments after the first. Compiled twice: what may run, and what may not. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Where a test can find it in the file, to change it there. */
char name[] = NAME;

int main(int argc, char **argv)
{
    char line[512];
    strcpy(line, name);
    size_t length = strlen(line);
    for (int i = 1; i < argc && length + strlen(argv[i]) + 2 < sizeof line && strlen(argv[i]) < 200; i++) {
        line[length++] = ' ';
        memcpy(line + length, argv[i], strlen(argv[i]));
        length += strlen(argv[i]);
    }
    line[length++] = '\n';
    int fd = open("ran", O_WRONLY | O_CREAT | O_APPEND, 0644);
    return fd >= 0 && write(fd, line, length) == (ssize_t)length ? 0 : 9;
}
