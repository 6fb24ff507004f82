/* The formats of format.def. */
#ifndef GR_ANSWER_FORMAT_H
#define GR_ANSWER_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gr_mark_kind { GR_MARK_FORMAT, GR_MARK_CALL, GR_MARK_SKIP, GR_MARK_REASONING, GR_MARK_WRITE };

/* How calls are written (format.def). */
struct gr_writing {
    const char *open, *call, *between, *close, *parameter, *separator;
};

/* A row of the table. */
struct gr_format_row {
    enum gr_mark_kind kind;
    const char *text; /* name, pattern, or opening mark */
    const char *more; /* signs, closing mark */
    const char *about;
    struct gr_writing writing;
};

/* That of a format; NULL: there is no such format, or it has no calls. */
const struct gr_writing *gr_format_writing(const char *name);

#define GR_MAX_MARK 24 /* marks of one format */

/* Something that a text may contain: the first bytes of a call, of reasoning, or a mark to drop. */
struct gr_mark {
    enum gr_mark_kind kind;
    const char *text; /* [n] */
    size_t n;
    bool first;       /* counts behind the beginning or a block only */
    const char *rest; /* of a call's pattern; closing mark of reasoning */
};

/* Stores the marks of a format in mark [GR_MAX_MARK]. Without `calls` those around calls are left
 * out, so that they stay in the text. Returns their number, or -1: no such format. */
int32_t gr_format_marks(const char *name, bool calls, struct gr_mark *mark);

/* The mark that a prompt ends with, but for blanks, whose number is stored in *n_blank; the longest
 * of them, NULL: none. */
const struct gr_mark *gr_format_opened(const struct gr_mark *mark, int32_t n_mark, const char *p,
                                       size_t n, size_t *n_blank);

/* The alternatives of a pattern, which stands at %{: the first one; the one behind the alternative
 * that contains p, NULL: it is the last; what follows all of them. */
const char *gr_pattern_first(const char *p);
const char *gr_pattern_next(const char *p);
const char *gr_pattern_behind(const char *p);

#endif
