#include "gr/status.h"

#include <criterion/criterion.h>
#include <pthread.h>

static void *elsewhere(void *arg)
{
    cr_expect_eq(gr_error_status(), 0);
    cr_expect_str_empty(gr_error());
    (void)gr_fail(GR_E_IO, "there");
    return arg;
}

/* Message and status stay until the next of the same thread. */
Test(status, last_failure)
{
    pthread_t thread;
    cr_expect_eq(gr_error_status(), 0);
    cr_expect_eq(gr_fail(GR_E_CORRUPT, "%s", "here"), GR_E_CORRUPT);
    cr_assert_eq(pthread_create(&thread, NULL, elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    cr_expect_eq(gr_error_status(), GR_E_CORRUPT);
    cr_expect_str_eq(gr_error(), "here");
}

Test(status, foreign_text_is_one_line)
{
    char text[] = "near '\ta\x7f\r\n\xc3\xa4'";
    cr_expect_str_eq(gr_one_line(text), "near '?a???\xc3\xa4'");
}
