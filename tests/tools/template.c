/* gpurun template: the prompt of a chat template, its ids, and what it says about mistakes. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tiny.h"

static const char conversation[] = "{\"messages\": [{\"role\": \"user\", \"content\": "
                                   "\"abc</s>\"}], \"add_generation_prompt\": true}";

/* A file of this test with a text in it. */
static const char *written(const char *name, const char *text)
{
    const char *path = tiny_path(name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(text, 1, strlen(text), f) == strlen(text) && !fclose(f));
    return path;
}

static void expect_text(struct outcome o, const char *text)
{
    cr_expect(o.exit_code == 0 && !strcmp(o.out, text), "%d: %s%s, expected %s", o.exit_code, o.out,
              o.err, text);
}

static void set_template(struct gr_gguf_writer *w)
{
    cr_assert_eq(
        gr_gguf_set_str(
            w, "tokenizer.chat_template",
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"),
        0);
}

Test(template, by_name_text_and_file, .timeout = 60)
{
    char m[128], t[128];
    snprintf(m, sizeof m, "%s", written("m.json", conversation));
    snprintf(t, sizeof t, "%s",
             written("t.jinja", "{% if tools %}T{% endif %}{{ messages|length }}{{ x }}\n"));
    expect_text(GPURUN(NULL, "template", "--chat-template", "chatml", "--messages", m),
                "<|im_start|>user\nabc</s><|im_end|>\n<|im_start|>assistant\n");
    expect_text(GPURUN(conversation, "template", "--chat-template", "{{ messages[0].role }}",
                       "--messages", "-"),
                "user");
    expect_text(GPURUN(NULL, "template", "--jinja", "--chat-template-file", t, "--messages", m),
                "1");
    expect_text(GPURUN(NULL, "template", "--no-jinja", "--chat-template-file", t, "--messages", m,
                       "--chat-template-kwargs", "{\"x\": [false], \"tools\": [1]}"),
                "T1[False]");
    expect_text(GPURUN("[{\"content\": \"a\"}]", "template", "--chat-template",
                       "{{ messages }}{{ add_generation_prompt is defined }}", "--messages", "-"),
                "[{'content': 'a'}]False");
}

/* The ids of a prompt: its own </s> is the end token, the one of the user is letters. */
Test(template, of_a_model, .timeout = 60)
{
    char m[128], model[128], plain[128];
    snprintf(m, sizeof m, "%s", written("m.json", conversation));
    snprintf(model, sizeof model, "%s", tiny_edited_model("template.gguf", set_template));
    snprintf(plain, sizeof plain, "%s", tiny_model(false));
    struct outcome o = GPURUN(NULL, "template", model, "--messages", m, "--json");
    json_t *j = json_loads(o.out, 0, NULL);
    cr_assert(j, "%s%s", o.out, o.err);
    const char *text = json_string_value(json_object_get(j, "prompt"));
    json_t *ids = json_object_get(j, "ids"), *input = json_object_get(j, "input");
    size_t n = json_array_size(ids), ends = 0;
    cr_assert(text && strstr(text, "abc</s></s>") && n > 4, "%s", o.out);
    for (size_t i = 0; i < n; i++)
        ends += json_integer_value(json_array_get(ids, i)) == TINY_EOS;
    cr_expect_eq(ends, 1, "%s", o.out);
    cr_expect_eq(json_integer_value(json_array_get(ids, n - 1)), TINY_EOS);
    cr_expect_eq(json_array_size(input), 1);
    cr_expect_eq(json_integer_value(json_array_get(json_array_get(input, 0), 1)),
                 (json_int_t)strlen(text) - 4);
    json_decref(j);
    o = GPURUN(NULL, "template", "-m", model, "--messages", m, "--ids");
    cr_expect(o.exit_code == 0 && *o.out == '[' && strstr(o.out, ", 2]\n"), "%s%s", o.out, o.err);
    o = GPURUN(NULL, "template", "-m", model, "--messages", m, "--chat-template",
               "{{ eos_token }}{{ messages[0].content }}", "--ids");
    cr_expect(o.exit_code == 0 && strstr(o.out, " 2, ") && !strstr(o.out, ", 2]"), "%s%s", o.out,
              o.err);
    expect_exit(GPURUN(NULL, "template", plain, "--messages", m), 1,
                "the model file has no chat template, and its vocabulary has the tokens of no "
                "known one: --chat-template NAME");
}

Test(template, mistakes, .timeout = 60)
{
    char m[128];
    snprintf(m, sizeof m, "%s", written("m.json", conversation));
#define TEMPLATE(...) GPURUN(NULL, "template", __VA_ARGS__, "--messages", m)
    expect_exit(TEMPLATE("--chat-template", "{{ raise_exception('Roles must alternate') }}"), 1,
                "gpurun: error: Roles must alternate\n");
    expect_exit(TEMPLATE("--chat-template", "a\n{{ 1 + 'x' }}"), 1,
                "line 2, column 6: unsupported operand");
    expect_exit(TEMPLATE("--chat-template", "chatnl"), 2, "did you mean chatml?");
    expect_exit(TEMPLATE("--chat-template", "x{% if %}"), 1,
                "line 1, column 8: an expression is expected");
    expect_exit(TEMPLATE("--chat-template-file", "/no/such"), 6, "cannot read '/no/such'");
    expect_exit(TEMPLATE("--chat-template", "chatml", "--chat-template-file", m), 2,
                "both give the template");
    expect_exit(TEMPLATE("--chat-template", "chatml", "--chat-template-kwargs", "[1]"), 2,
                "an object is expected");
    expect_exit(TEMPLATE("--chat-template", "chatml", "--chat-template-kwargs", "{"), 2,
                "--chat-template-kwargs, line 1");
    expect_exit(
        GPURUN("{\"messages\": ]", "template", "--chat-template", "chatml", "--messages", "-"), 2,
        "line 1, column 14");
    expect_exit(GPURUN("1", "template", "--chat-template", "chatml", "--messages", "-"), 2,
                "-, line 1");
    expect_exit(GPURUN(NULL, "template", "--chat-template", "chatml"), 2,
                "give a file of JSON by --messages");
    expect_exit(GPURUN(NULL, "template", "--chat-template", "chatml", "--messages", "/no/such"), 6,
                "/no/such");
}
