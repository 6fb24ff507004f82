/* Messages about models that are made for chats. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tiny.h"

static void set_template(struct gr_gguf_writer *w)
{
    cr_assert_eq(gr_gguf_set_str(w, "tokenizer.chat_template", "<s>{{ messages }}</s>"), 0);
}

/* A model for chats is told about, unless the prompt has been written for it. */
Test(chat, templates_are_told_about, .timeout = 120)
{
    static const char hint[] = "the model has a chat template, which run does not apply";
    char m[128];
    snprintf(m, sizeof m, "%s", tiny_edited_model("chat.gguf", set_template));
#define CHAT "-m", m, "-t", "1", "-n", "2", "--temp", "0", "--ignore-eos"
    struct outcome o = GPURUN(NULL, CHAT, "-p", "abc"),
                   quiet = GPURUN(NULL, CHAT, "-p", "abc", "-q");
    expect_exit(o, 0, hint);
    cr_expect_leq(o.err_lines, 4, "%s", o.err);
    cr_expect(!strstr(strstr(o.err, hint) + 1, hint), "once: %s", o.err);
    cr_expect_str_eq(quiet.out, o.out);
    cr_expect_str_eq(quiet.err, "");
    o = GPURUN(NULL, CHAT, "-p", "abc", "--json");
    expect_exit(o, 0, hint);
    json_t *j = json_loads(o.out, 0, NULL);
    cr_assert(j, "%s", o.out);
    json_decref(j);
    expect_exit(GPURUN(NULL, CHAT, "-p", ""), 0, hint);
    o = GPURUN(NULL, CHAT, "-p", "abc</s>");
    cr_expect(o.exit_code == 0 && !strstr(o.err, hint), "%s", o.err);
    o = GPURUN(NULL, tiny_model(false), "-t", "1", "-p", "abc", "-n", "2");
    cr_expect(o.exit_code == 0 && !strstr(o.err, hint), "%s", o.err);
    o = GPURUN(NULL, "inspect", "--json", m);
    cr_expect(strstr(o.out, "<s>{{ messages }}</s>"), "what the hint names: %s", o.out);
}
