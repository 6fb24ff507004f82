#include "base/text.h"

#include <ctype.h>

#include "base/checked.h"

#define LONGEST 64

size_t gr_edit_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t row[LONGEST + 1];
    n_a = GR_MIN(n_a, (size_t)LONGEST), n_b = GR_MIN(n_b, (size_t)LONGEST);
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            size_t best = GR_MIN(diagonal + !same, GR_MIN(row[j], row[j - 1]) + 1);
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}
