#include "base/text.h"

#include <ctype.h>

#include "base/checked.h"

#define LONGEST 64

static int same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

size_t gr_edit_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t row[3][LONGEST + 1]; /* row i holds the distances from the first i letters of a */
    n_a = GR_MIN(n_a, (size_t)LONGEST), n_b = GR_MIN(n_b, (size_t)LONGEST);
    for (size_t j = 0; j <= n_b; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *now = row[i % 3], *before = row[(i + 2) % 3], *two_before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            now[j] = GR_MIN(before[j - 1] + !same(a[i - 1], b[j - 1]),
                            GR_MIN(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                now[j] = GR_MIN(now[j], two_before[j - 2] + 1);
        }
    }
    return row[n_a % 3][n_b];
}
