/* Any bytes as a chat template, and behind a zero byte the variables it sees: refused in one line,
 * or rendered within the limits; the parts that are input lie within the text in order, and a
 * letter that only the input has lies within them; all memory is given back. Without a zero byte
 * the variables are those of a conversation with tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"
#include "gr/status.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

/* U+E000 stands in every text of it. */
#define MARK "\xee\x80\x80"
static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"a" MARK "\"},"
    "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"" MARK "b c\"}]},"
    "{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"" MARK
    "\", \"tool_calls\": "
    "[{\"type\": \"function\", \"id\": \"1" MARK "\", \"function\": {\"name\": \"f" MARK "\", "
    "\"arguments\": {\"x\": [1, 2.5, null, true]}}}]},"
    "{\"role\": \"tool\", \"content\": \"{\\\"a\\\": 1}" MARK "\"}], "
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f" MARK "\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"array\"}}}}}], "
    "\"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s: %s\n", what, gr_error_message());
    abort();
}

/* `unmarked`: the template itself has no U+E000. */
static void check_prompt(const struct gr_prompt *p, bool unmarked)
{
    size_t end = 0, s = 0;
    for (size_t i = 0; i < p->n_input; i++) {
        must(p->input[i].lo < p->input[i].hi && p->input[i].hi <= p->n, "a part of the text");
        must(!i || p->input[i].lo > end, "in order, with something between");
        end = p->input[i].hi;
    }
    must(p->n <= 4u << 20 && p->text[p->n] == 0, "a text of at most 4 MiB");
    for (size_t i = 0; i < p->n;) {
        uint32_t cp;
        int k = gr_utf8_next(p->text + i, p->n - i, &cp);
        must(k > 0, "it is UTF-8");
        while (s < p->n_input && p->input[s].hi <= i)
            s++;
        bool input = s < p->n_input && p->input[s].lo <= i && i + (size_t)k <= p->input[s].hi;
        must(cp != 0xe000 || input || !unmarked, "input is marked");
        i += (size_t)k;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    size_t peak, before = gr_alloc_held(&peak);
    const char *text = (const char *)p, *json = n ? memchr(text, 0, n) : NULL;
    size_t n_text = json ? (size_t)(json - text) : n;
    struct gr_template *t = NULL;
    struct gr_prompt prompt = {0};
    int rc = gr_template_new(&t, text, n_text);
    must(rc == 0 || rc == GR_E_TEMPLATE, "bad bytes are a bad template");
    must(!t == (rc != 0) && (!rc || !strchr(gr_error(), '\n')), "a template, or one line");
    bool given = json && json + 1 < text + n;
    if (t) {
        rc = gr_template_render(t, given ? json + 1 : conversation,
                                given ? n - n_text - 1 : sizeof conversation - 1, 1721995200,
                                &prompt);
        must(rc == 0 || rc == GR_E_TEMPLATE || (given && rc == GR_E_INVALID), "a text or an error");
        must(!prompt.text == (rc != 0) && (!rc || !strchr(gr_error(), '\n')), "or one line");
    }
    if (prompt.text)
        check_prompt(&prompt,
                     !given && !memmem(text, n_text, MARK, 1) && !memchr(text, '\\', n_text));
    gr_prompt_free(&prompt);
    gr_template_free(&t);
    gr_alloc_held(&peak);
    must(peak - before <= 256u << 20, "at most 256 MiB of memory");
    must(gr_alloc_held(NULL) == before, "all memory is given back");
    return 0;
}
