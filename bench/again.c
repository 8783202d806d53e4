/* Starts the command and does nothing else: the cost of a second exec without a sandbox. */
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc > 1)
        execv(argv[1], argv + 1);
    return 125;
}
