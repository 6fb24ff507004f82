/* Tests that end in each way: `check` looks at what the journal says of them. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>

Test(planted, a_right)
{
    cr_expect(true);
}

Test(planted, b_wrong)
{
    cr_expect(true, "this holds");
    cr_expect(false, "the first\nfault");
    cr_assert(false, "the second");
}

Test(planted, c_crash)
{
    raise(SIGKILL);
}

Test(planted, d_leaves)
{
    exit(3);
}

Test(planted, e_skipped)
{
    cr_skip("not here");
}

static void wrong(void)
{
    cr_assert(false, "wrong");
}

Test(planted, f_init, .init = wrong)
{
}

Test(planted, g_fini, .fini = wrong)
{
}

Test(planted, h_last)
{
}
