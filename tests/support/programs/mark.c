/* A marker program. It adds one line to the file `ran` in its working directory: its name (set at
   compile time) and its arguments after the first. It is compiled twice: as the allowed and as the
   forbidden program. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A test finds and changes this text in the file. */
char name[] = NAME;

int main(int argc, char **argv)
{
    char line[512];
    strcpy(line, name);
    size_t length = strlen(line);
    for (int i = 1; i < argc; i++) {
        if (length + strlen(argv[i]) + 2 >= sizeof line || strlen(argv[i]) >= 200)
            break;
        line[length++] = ' ';
        memcpy(line + length, argv[i], strlen(argv[i]));
        length += strlen(argv[i]);
    }
    line[length++] = '\n';
    int fd = open("ran", O_WRONLY | O_CREAT | O_APPEND, 0644);
    return fd >= 0 && write(fd, line, length) == (ssize_t)length ? 0 : 9;
}
