#include <string.h>

#include "test/test.hpp"

int n_failed;

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "speed")) {
        tell_speed();
        return 0;
    }
    test_kernels();
    test_faults();
    test_engine();
    printf("%d checks failed\n", n_failed);
    return n_failed != 0;
}
