/* Drafts from the text itself. */
#include <string.h>

#include "draft/draft.h"

int32_t gr_draft_look_up(const int32_t *text, size_t n, int32_t n_gram, int32_t *draft,
                         int32_t most)
{
    size_t g = (size_t)n_gram;
    for (size_t end = n; end-- > g;) { /* text[end - g, end) is compared with the last g tokens */
        if (text[end - 1] != text[n - 1] ||
            memcmp(text + end - g, text + n - g, g * sizeof *text) != 0)
            continue;
        for (int32_t i = 0; i < most; i++) {
            size_t at = end + (size_t)i;
            draft[i] = at < n ? text[at] : draft[at - n];
        }
        return most;
    }
    return 0;
}
