#include "test/test.hpp"

int n_failed;

int main()
{
    test_kernels();
    printf("%d checks failed\n", n_failed);
    return n_failed != 0;
}
