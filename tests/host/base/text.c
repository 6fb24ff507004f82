#include "base/text.h"

#include <criterion/criterion.h>
#include <string.h>

static size_t distance(const char *a, const char *b)
{
    return gr_edit_distance(a, strlen(a), b, strlen(b));
}

Test(text, edit_distance)
{
    const struct {
        const char *a, *b;
        size_t d;
    } cases[] = {
        {"", "", 0},           {"", "abc", 3},  {"kitten", "sitting", 3}, {"tmep", "temp", 1},
        {"Llama", "lLAMA", 0}, {"ab", "ba", 1}, {"abcdef", "badcfe", 3},  {"q4_k", "q4_0", 1},
        {"ca", "abc", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(distance(cases[i].a, cases[i].b), cases[i].d, "%s", cases[i].a);
        cr_expect_eq(distance(cases[i].b, cases[i].a), cases[i].d, "%s", cases[i].b);
    }
}

Test(text, edit_distance_of_long_names)
{
    char a[200], b[200];
    memset(a, 'a', sizeof a), memset(b, 'b', sizeof b);
    cr_expect_eq(gr_edit_distance(a, 200, b, 200), 64);
    cr_expect_eq(gr_edit_distance(a, 200, b, 0), 64);
    cr_expect_eq(gr_edit_distance(a, 200, a, 64), 0);
}
