/* Random calls, written by a template in the style of each family, are read back equal; changed at
 * random they lose nothing. */
#include <jansson.h>

#include "host/answer/read.h"

#define B "<\xef\xbd\x9c" /* <｜ */
#define U "\xe2\x96\x81"  /* ▁ */
#define E "\xef\xbd\x9c>" /* ｜> */
#define D                                                                                          \
    "\xef\xbd\x9c"                                                                                 \
    "DSML"                                                                                         \
    "\xef\xbd\x9c" /* ｜DSML｜ */

#define THINK "{% if reasoning %}<think>\n{{ reasoning }}\n</think>\n\n{% endif %}{{ text }}"
/* A macro that writes a value as the templates of Gemma do, with a mark around strings. */
#define GEMMA(mark)                                                                                \
    "{% macro v(x) %}{% if x is string %}" mark "{{ x }}" mark                                     \
    "{% elif x is mapping %}{{ '{' }}{% for k, e in x|items %}{{ k }}:{{ v(e) }}{{ '' if "         \
    "loop.last else ',' }}{% endfor %}{{ '}' }}{% elif x is sequence %}[{% for e in x %}{{ "       \
    "v(e) }}{{ '' if loop.last else ',' }}{% endfor %}]{% else %}{{ x|tojson }}{% endif %}{% "     \
    "endmacro %}"
static const struct family {
    const char *format, *template;
    bool ids;   /* written */
    bool tags;  /* strings stand between tags, as they are */
    bool plain; /* without reasoning */
} families[] = {
    {"hermes",
     THINK "{% for c in calls %}\n<tool_call>\n{\"name\": {{ c.name|tojson }}, \"arguments\": {{ "
           "c.arguments|tojson }}}"
           "\n</tool_call>{% endfor %}",
     false, false, false},
    {"hermes",
     THINK "{% for c in calls %}<tool_call>{\"arguments\": {{ c.arguments|tojson(indent=2) }}, "
           "\"name\": {{ c.name|tojson }}}"
           "</tool_call>{% endfor %}",
     false, false, false},
    {"qwen3-coder",
     THINK "{% for c in calls %}\n<tool_call>\n<function={{ c.name }}>\n{% for k, v in "
           "c.arguments|items %}<parameter={{ k }}>\n"
           "{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor "
           "%}</function>\n</tool_call>{% endfor %}",
     false, true, false},
    {"seed-oss",
     "{% if reasoning %}<seed:think>{{ reasoning }}</seed:think>{% endif %}{{ text }}{% for c in "
     "calls %}<seed:tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments|items "
     "%}<parameter={{ k }}>{{ v if v is string else v|tojson }}</parameter>\n{% endfor "
     "%}</function>\n</seed:tool_call>\n{% endfor %}",
     false, true, false},
    {"minimax-m2",
     THINK "\n<minimax:tool_call>\n{% for c in calls %}<invoke name=\"{{ c.name }}\">\n{% for k, v "
           "in c.arguments|items %}<parameter name=\"{{ k }}\">{{ v if v is string else v|tojson "
           "}}</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>",
     false, true, false},
    {"glm",
     THINK "{% for c in calls %}\n<tool_call>{{ c.name }}\n{% for k, v in c.arguments|items "
           "%}<arg_key>{{ k }}</arg_key>\n"
           "<arg_value>{{ v if v is string else v|tojson }}</arg_value>\n{% endfor "
           "%}</tool_call>{% endfor %}",
     false, true, false},
    {"deepseek-r1",
     THINK B "tool" U "calls" U "begin" E "{% for c in calls %}" B "tool" U "call" U "begin" E
             "function" B "tool" U "sep" E "{{ c.name }}\n```json\n{{ c.arguments|tojson }}\n```" B
             "tool" U "call" U "end" E "{{ '' if loop.last else '\n' }}{% endfor %}" B "tool" U
             "calls" U "end" E,
     false, false, false},
    {"deepseek-r1",
     THINK B "tool" U "calls" U "begin" E "{% for c in calls %}" B "tool" U "call" U "begin" E
             "{{ c.name }}" B "tool" U "sep" E "{{ c.arguments|tojson }}" B "tool" U "call" U
             "end" E "{% endfor %}" B "tool" U "calls" U "end" E,
     false, false, false},
    {"mistral",
     "{% if reasoning %}[THINK]{{ reasoning }}[/THINK]{% endif %}{{ text }}[TOOL_CALLS][{% for c "
     "in calls %}{\"name\": "
     "{{ c.name|tojson }}, \"arguments\": {{ c.arguments|tojson }}, \"id\": {{ c.id|tojson }}}{{ "
     "'' if loop.last else ', ' }}"
     "{% endfor %}]",
     true, false, false},
    {"mistral",
     "{{ text }}{% for c in calls %}[TOOL_CALLS]{{ c.name }}[CALL_ID]{{ c.id }}[ARGS]{{ "
     "c.arguments|tojson }}{% endfor %}",
     true, false, true},
    {"mistral",
     "{{ text }}{% for c in calls %}[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments|tojson }}{% "
     "endfor %}",
     false, false, true},
    {"harmony",
     "{% if reasoning %}<|channel|>analysis<|message|>{{ reasoning }}<|end|><|start|>assistant{% "
     "endif %}{% if text %}"
     "<|channel|>commentary<|message|>{{ text }}<|end|><|start|>assistant{% endif %}{% for c in "
     "calls %}<|channel|>commentary "
     "to=functions.{{ c.name }} <|constrain|>json<|message|>{{ c.arguments|tojson }}<|call|>"
     "{{ '' if loop.last else '<|start|>assistant' }}{% endfor %}",
     false, false, false},
    {"harmony",
     "{% for c in calls %}{{ '' if loop.first else '<|start|>assistant' }} to=functions.{{ c.name "
     "}}<|channel|>commentary json"
     "<|message|>{{ c.arguments|tojson }}<|call|>{% endfor %}",
     false, false, true},
    {"functionary-v3.2",
     "{% if text %}>>>all\n{{ text }}{% endif %}{% for c in calls %}>>>{{ c.name }}\n{{ "
     "c.arguments|tojson }}{% endfor %}",
     false, false, true},
    {"functionary-v3.1",
     "{{ text }}{% for c in calls %}<function={{ c.name }}>{{ c.arguments|tojson }}</function>{% "
     "endfor %}",
     false, false, true},
    {"llama3",
     "{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"parameters\": {{ c.arguments|tojson "
     "}}}{{ '' if loop.last else '; ' }}"
     "{% endfor %}",
     false, false, true},
    {"llama3",
     "{{ text }}{% for c in calls %}<|python_tag|>{{ c.name }}.call({% for k, v in "
     "c.arguments|items %}{{ k }}={{ v|tojson }}"
     "{{ '' if loop.last else ', ' }}{% endfor %}){% endfor %}",
     false, false, true},
    {"command-r7b",
     "{% if reasoning %}<|START_THINKING|>{{ reasoning }}<|END_THINKING|>{% endif "
     "%}<|START_ACTION|>[\n{% for c in calls %}    "
     "{\"tool_call_id\": {{ c.id|tojson }}, \"tool_name\": {{ c.name|tojson }}, \"parameters\": {{ "
     "c.arguments|tojson }}}"
     "{{ '' if loop.last else ',' }}\n{% endfor %}]<|END_ACTION|>",
     true, false, false},
    {"command-r",
     "Action: ```json\n[{% for c in calls %}{\"tool_name\": {{ c.name|tojson }}, \"parameters\": "
     "{{ c.arguments|tojson(indent=4) }}}"
     "{{ '' if loop.last else ',\n' }}{% endfor %}]```",
     false, false, true},
    {"kimi-k2",
     "{{ text }}<|tool_calls_section_begin|>{% for c in calls %}<|tool_call_begin|>functions.{{ "
     "c.name }}:{{ loop.index0 }}"
     "<|tool_call_argument_begin|>{{ c.arguments|tojson }}<|tool_call_end|>{% endfor "
     "%}<|tool_calls_section_end|>",
     false, false, true},
    {"phi4-mini",
     "{{ text }}<|tool_call|>[{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"arguments\": "
     "{{ c.arguments|tojson }}}{{ '' if loop.last else ', ' }}{% endfor %}]<|/tool_call|>",
     false, false, true},
    {"phi4-mini",
     "{{ text }}functools[{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"arguments\": "
     "{{ c.arguments|tojson }}}{{ '' if loop.last else ', ' }}{% endfor %}]",
     false, false, true},
    {"granite3",
     "{{ text }}<|tool_call|>[{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"arguments\": "
     "{{ c.arguments|tojson }}}"
     "{{ '' if loop.last else ', ' }}{% endfor %}]",
     false, false, true},
    {"deepseek-v3.2",
     THINK "<" D "function_calls>\n{% for c in calls %}<" D
           "invoke name=\"{{ c.name }}\">\n{% for k, v in "
           "c.arguments|items %}<" D
           "parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else "
           "'false' }}\">{{ v if v is string else v|tojson }}</" D "parameter>\n{% endfor %}</" D
           "invoke>\n{% endfor %}</" D "function_calls>",
     false, true, false},
    {"lfm2-tools",
     "{{ text }}<|tool_call_start|>[{% for c in calls %}{{ c.name }}({% for k, v in "
     "c.arguments|items %}{{ k }}={{ v|tojson }}{{ '' if loop.last else ', ' }}{% endfor %}){{ '' "
     "if loop.last else ', ' }}{% endfor %}]<|tool_call_end|>",
     false, false, true},
    {"llama4-pythonic",
     "{{ text }}<|python_start|>[{% for c in calls %}{{ c.name }}({% for k, v in "
     "c.arguments|items %}{{ k }}={{ v|tojson }}{{ '' if loop.last else ', ' }}{% endfor %}){{ '' "
     "if loop.last else ', ' }}{% endfor %}]<|python_end|>",
     false, false, true},
    {"gemma4",
     GEMMA("<|\"|>") "{% if reasoning %}<|channel>thought\n{{ reasoning }}\n<channel|>{% endif "
                     "%}{{ text }}{% for c in calls %}<|tool_call>call:{{ c.name }}{{ "
                     "v(c.arguments) }}<tool_call|>{% endfor %}",
     false, false, false},
    {"functiongemma",
     GEMMA("<escape>") "{{ text }}{% for c in calls %}<start_function_call>call:{{ c.name }}{{ "
                       "v(c.arguments) }}<end_function_call>{% endfor %}",
     false, false, true},
    {"minimax-m1",
     THINK "{{ '\n' if text }}<tool_calls>\n{% for c in calls %}{\"name\": {{ c.name|tojson }}, "
           "\"arguments\": {{ c.arguments|tojson }}}\n{% endfor %}</tool_calls>",
     false, false, false},
    {"olmo3",
     THINK "<function_calls>{% for c in calls %}{{ c.name }}({% for k, v in "
           "c.arguments|items %}{{ k }}={{ v|tojson }}{{ '' if loop.last else ', ' }}{% endfor "
           "%}){{ '' if loop.last else '\n' }}{% endfor %}</function_calls>",
     false, false, false},
    {"apertus-tools",
     "{% if reasoning %}<|inner_prefix|>{{ reasoning }}<|inner_suffix|>{% endif %}{{ text "
     "}}<|tools_prefix|>[{% for c in calls %}{\"{{ c.name }}\": {{ c.arguments|tojson }}}{{ '' if "
     "loop.last else ', ' }}{% endfor %}]<|tools_suffix|>",
     false, false, false},
    {"solar-open",
     "{% if reasoning %}<|think|>{{ reasoning }}<|end|><|begin|>assistant{% endif %}{% if text %}"
     "<|content|>{{ text }}<|end|><|begin|>assistant{% endif %}<|tool_calls|>{% for c in calls %}"
     "<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ c.name }}<|tool_call:args|>{{ "
     "c.arguments|tojson }}<|tool_call:end|>{% endfor %}<|calls|>",
     true, false, false},
    {"hy3",
     "{% if reasoning %}<think:opensource>{{ reasoning }}</think:opensource>{% endif %}{{ text }}"
     "<tool_calls:opensource>\n{% for c in calls %}<tool_call:opensource>{{ c.name }}"
     "<tool_sep:opensource>\n{% for k, v in c.arguments|items %}<arg_key:opensource>{{ k }}"
     "</arg_key:opensource>\n<arg_value:opensource>{{ v if v is string else v|tojson }}"
     "</arg_value:opensource>\n{% endfor %}</tool_call:opensource>\n{% endfor %}"
     "</tool_calls:opensource>",
     false, true, false},
    {"nemotron-tools",
     THINK "<TOOLCALL>[{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"arguments\": {{ "
           "c.arguments|tojson }}}{{ '' if loop.last else ', ' }}{% endfor %}]</TOOLCALL>",
     false, false, false},
    {"hunyuan",
     "{% if reasoning %}<think>\n{{ reasoning }}\n</think>\n<answer>\n{% endif %}{{ text "
     "}}<tool_calls>[{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"arguments\": {{ "
     "c.arguments|tojson }}}{{ '' if loop.last else ', ' }}{% endfor %}]</tool_calls>{{ "
     "'\n</answer>' if reasoning else '' }}",
     false, false, false},
    {"gigachat3.1",
     "{{ text }}{% for c in calls %}<|function_call|>{\"name\": {{ c.name|tojson }}, "
     "\"arguments\": "
     "{{ c.arguments|tojson }}}{% endfor %}",
     false, false, true},
    {"gigachat3",
     "{{ text }}{% for c in calls %}<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": {{ "
     "c.name|tojson }}, \"arguments\": {{ c.arguments|tojson }}}{% endfor %}",
     false, false, true},
    {"jamba-tools",
     "{{ text }}<tool_calls>[\n{% for c in calls %}{\"name\": {{ c.name|tojson }}, \"arguments\": "
     "{{ c.arguments|tojson }}}{{ '' if loop.last else ',\n' }}{% endfor %}\n]</tool_calls>",
     false, false, true},
    {"internlm2-tools",
     "{{ text }}{% for c in calls %}<|action_start|><|plugin|>\n{\"name\": {{ c.name|tojson }}, "
     "\"parameters\": {{ c.arguments|tojson }}}<|action_end|>{% endfor %}",
     false, false, true},
    {"json",
     "{\"tool_calls\": [{% for c in calls %}{\"id\": {{ c.id|tojson }}, \"type\": \"function\", "
     "\"function\": {\"name\": "
     "{{ c.name|tojson }}, \"arguments\": {{ c.arguments|tojson|tojson }}}}{{ '' if loop.last else "
     "', ' }}{% endfor %}]}",
     true, false, true},
};
enum { N_FAMILY = sizeof families / sizeof *families };

/* ---- random calls ---- */

static void random_string(struct gr_rng *rng, char *to, size_t n)
{
    static const char *const parts[] = {"a",
                                        "x y",
                                        "\xc3\xa9",
                                        "\xf0\x9f\x98\x80",
                                        "\"",
                                        "\\",
                                        "\n",
                                        "{",
                                        "}",
                                        "]",
                                        ", ",
                                        "<",
                                        "=",
                                        "'",
                                        "%",
                                        "12",
                                        "True",
                                        "\t",
                                        "\xe2\x80\xa8",
                                        "null",
                                        ";",
                                        "[ARGS]",
                                        "<tool_call>",
                                        "</tool_call>",
                                        "</think>",
                                        "<|call|>",
                                        "<|end|>",
                                        ">>>all\n",
                                        "[TOOL_CALLS]",
                                        B "tool" U "call" U "end" E,
                                        "```",
                                        "</function>",
                                        "\"}",
                                        "</param",
                                        "</arg_",
                                        "\x7f",
                                        "\x01"};
    size_t n_part = sizeof parts / sizeof *parts;
    to[0] = 0;
    for (uint32_t i = gr_rng_below(rng, 5); i; i--) {
        const char *part = parts[gr_rng_below(rng, (uint32_t)n_part)];
        if (strlen(to) + strlen(part) < n)
            strcat(to, part);
    }
}

/* NOLINTNEXTLINE(misc-no-recursion) */
static json_t *random_value(struct gr_rng *rng, int depth, bool word_keys)
{
    char text[256], key[256];
    uint32_t kind = gr_rng_below(rng, depth ? 8 : 6);
    if (kind == 0)
        return json_integer((json_int_t)gr_rng_below(rng, 2000) - 1000);
    if (kind == 1)
        return json_real((double)gr_rng_below(rng, 1000) / 8 - 20);
    if (kind == 2)
        return gr_rng_below(rng, 3) ? json_boolean(gr_rng_below(rng, 2)) : json_null();
    if (kind < 6) {
        random_string(rng, text, sizeof text);
        return json_string(text);
    }
    json_t *v = kind == 6 ? json_array() : json_object();
    for (uint32_t i = gr_rng_below(rng, 4); i; i--) {
        snprintf(key, sizeof key, "k%u", i);
        if (!word_keys)
            random_string(rng, key, sizeof key);
        if (kind == 6)
            json_array_append_new(v, random_value(rng, depth - 1, word_keys));
        else
            json_object_set_new(v, key, random_value(rng, depth - 1, word_keys));
    }
    return v;
}

static json_t *random_arguments(struct gr_rng *rng, bool word_keys)
{
    char key[256];
    json_t *v = json_object();
    for (uint32_t i = gr_rng_below(rng, 4); i; i--) {
        snprintf(key, sizeof key, "key_%u", gr_rng_below(rng, 100));
        if (!word_keys)
            random_string(rng, key, sizeof key);
        json_object_set_new(v, key, random_value(rng, 3, word_keys));
    }
    return v;
}

static json_t *random_calls(struct gr_rng *rng, bool word_keys)
{
    static const char *const names[] = {"f",     "get_weather", "all_of",
                                        "a-b.c", "search2",     "functional"};
    json_t *calls = json_array();
    for (uint32_t i = 0, n = 1 + gr_rng_below(rng, 3); i < n; i++) {
        char id[16];
        snprintf(id, sizeof id, "id%07u", gr_rng_below(rng, 9999999));
        json_array_append_new(calls,
                              json_pack("{s:s, s:o, s:s}", "name", names[gr_rng_below(rng, 6)],
                                        "arguments", random_arguments(rng, word_keys), "id", id));
    }
    return calls;
}

/* Tools that declare every string of the arguments a string; of the same name they share one. */
static char *declare_tools(json_t *calls)
{
    json_t *tools = json_array(), *call, *value;
    size_t i;
    const char *key;
    json_array_foreach(calls, i, call)
    {
        json_t *properties = json_object();
        json_object_foreach(json_object_get(call, "arguments"), key, value) json_object_set_new(
            properties, key,
            json_pack("{s:s}", "type", json_is_string(value) ? "string" : "number"));
        json_array_append_new(tools,
                              json_pack("{s:s, s:{s:O, s:{s:s, s:o}}}", "type", "function",
                                        "function", "name", json_object_get(call, "name"),
                                        "parameters", "type", "object", "properties", properties));
    }
    char *text = json_dumps(tools, 0);
    json_decref(tools);
    return text;
}

/* ---- writing and reading ---- */

static void render(const struct family *f, json_t *variables, struct gr_prompt *p)
{
    struct gr_template *t;
    char *json = json_dumps(variables, 0);
    cr_assert_eq(gr_template_new(&t, f->template, strlen(f->template)), 0, "%s: %s", f->format,
                 gr_error());
    cr_assert_eq(gr_template_render(t, json, strlen(json), 0, p), 0, "%s: %s", f->format,
                 gr_error());
    gr_template_free(&t);
    free(json);
}

/* An answer of a family with calls of its own names; *calls and *tools are the caller's. */
static void make_answer(const struct family *f, struct gr_rng *rng, struct gr_prompt *p,
                        json_t **calls, char **tools)
{
    bool words = strstr(f->template, "{{ k }}={{") || strstr(f->template, "{{ k }}:{{");
    *calls = random_calls(rng, f->tags || words);
    for (size_t i = 1; f->tags && i < json_array_size(*calls);
         i++) { /* one declaration for each name */
        char name[24];
        snprintf(name, sizeof name, "f%zu", i);
        json_object_set_new(json_array_get(*calls, i), "name", json_string(name));
    }
    *tools = declare_tools(*calls);
    bool text = strstr(f->template, "{{ text }}") && gr_rng_below(rng, 2);
    json_t *v =
        json_pack("{s:O, s:s, s:s}", "calls", *calls, "text", text ? "Some t\xc3\xa9xt <x>" : "",
                  "reasoning", !f->plain && gr_rng_below(rng, 2) ? "hm, <hm>\n\nhm" : "");
    render(f, v, p);
    json_decref(v);
}

static void compare_calls(const struct family *f, const struct gr_prompt *p, json_t *calls,
                          const struct reading *r)
{
    cr_assert_eq((size_t)r->n_done, json_array_size(calls), "%s: %.*s\n%s", f->format, (int)p->n,
                 p->text, (char *)r->log.data);
    for (int32_t i = 0; i < r->n_done; i++) {
        json_error_t e;
        json_t *call = json_array_get(calls, (size_t)i),
               *read = json_loadb(r->arguments[i].data, r->arguments[i].n, 0, &e);
        cr_assert(read, "%s: %s\n%s", f->format, e.text, (char *)r->log.data);
        cr_assert_str_eq(r->name[i], json_string_value(json_object_get(call, "name")));
        cr_assert(!f->ids || !strcmp(r->id[i], json_string_value(json_object_get(call, "id"))),
                  "%s", r->id[i]);
        cr_assert(json_equal(read, json_object_get(call, "arguments")), "%s: %.*s\n%s", f->format,
                  (int)p->n, p->text, (char *)r->log.data);
        json_decref(read);
    }
    bool text = memmem(p->text, p->n, "Some t", 6) != NULL,
         reasoning = memmem(p->text, p->n, "hm, <hm>", 8) != NULL;
    const char *expected = text ? "Some t\xc3\xa9xt <x>" : "";
    cr_assert(r->text.n == strlen(expected) &&
                  !memcmp(r->text.data ? r->text.data : "", expected, r->text.n),
              "%s: %s", f->format, (char *)r->log.data);
    expected = reasoning ? "hm, <hm>\n\nhm" : "";
    cr_assert(r->reasoning.n == strlen(expected) &&
                  !memcmp(r->reasoning.data ? r->reasoning.data : "", expected, r->reasoning.n),
              "%s: %s", f->format, (char *)r->log.data);
}

/* Whether a string of the arguments would end its own tag. */
static bool ends_its_tag(const struct family *f, json_t *calls)
{
    bool ends = false;
    json_t *call, *value;
    size_t i;
    const char *key;
    json_array_foreach(calls, i, call)
    {
        json_object_foreach(json_object_get(call, "arguments"), key, value)
        {
            char *text = json_dumps(value, JSON_ENCODE_ANY);
            ends = ends || strstr(text, "</parameter>") || strstr(text, "</arg_value>") ||
                   strstr(text, "</" D "parameter>");
            free(text);
        }
    }
    return f->tags && ends;
}

Test(roundtrip, random_calls_are_read_back, .timeout = 60)
{
    int n = 0;
    for (int k = 0; k < N_FAMILY; k++) {
        struct gr_rng rng = gr_rng_new((uint64_t)k + 1);
        for (int i = 0; i < 150; i++) {
            const struct family *f = &families[k];
            struct gr_prompt p;
            struct reading r;
            json_t *calls;
            char *tools;
            make_answer(f, &rng, &p, &calls, &tools);
            if (!ends_its_tag(f, calls)) {
                read_in_all_ways(&r, f->format, NULL, f->tags ? tools : NULL, p.text, p.n);
                compare_calls(f, &p, calls, &r);
                reading_fini(&r);
                n++;
            }
            gr_prompt_free(&p);
            json_decref(calls);
            free(tools);
        }
    }
    cr_expect(n > 140 * N_FAMILY, "%d", n);
}

/* ---- damage ---- */

static void damage(struct gr_rng *rng, char *p, size_t *n)
{
    static const char bytes[] = "{}[]\",:<>| \n\\ax\xc3\xff";
    size_t at = gr_rng_below(rng, (uint32_t)*n);
    uint32_t kind = gr_rng_below(rng, 4);
    if (kind == 0) {
        *n = at; /* cut */
    } else if (kind == 1) {
        memmove(p + at, p + at + 1, *n - at - 1);
        --*n;
    } else if (kind == 2) {
        p[at] = bytes[gr_rng_below(rng, sizeof bytes - 1)];
    } else {
        size_t from = gr_rng_below(rng, (uint32_t)*n); /* a part again */
        size_t length = *n - (from > at ? from : at);
        memmove(p + at, p + from, length);
    }
}

/* Without marks that are dropped and without a call that is done, all bytes but the blanks behind
 * blocks are in the text. */
Test(roundtrip, damaged_calls_lose_nothing, .timeout = 60)
{
    static const char *const whole[] = {"hermes",           "glm",       "llama3", "granite3",
                                        "functionary-v3.1", "command-r", "json",   "mistral",
                                        "phi4-mini"};
    int n_text = 0, n_done = 0;
    for (int k = 0; k < N_FAMILY; k++) {
        const struct family *f = &families[k];
        struct gr_rng rng = gr_rng_new((uint64_t)k + 100);
        bool keeps = false;
        for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
            keeps = keeps || !strcmp(f->format, whole[i]);
        for (int i = 0; i < 150; i++) {
            struct gr_prompt p;
            struct reading r;
            json_t *calls;
            char *tools;
            make_answer(f, &rng, &p, &calls, &tools);
            for (uint32_t d = 1 + gr_rng_below(&rng, 2); d && p.n; d--)
                damage(&rng, p.text, &p.n);
            read_in_all_ways(&r, f->format, NULL, f->tags ? tools : NULL, p.text, p.n);
            for (int32_t c = 0; c < r.n_done && c < MOST_CALLS; c++, n_done++) {
                json_t *read =
                    json_loadb(r.arguments[c].data, r.arguments[c].n, JSON_ALLOW_NUL, NULL);
                cr_assert(json_is_object(read), "%s: %s", f->format, (char *)r.log.data);
                json_decref(read);
            }
            if (keeps && !r.n_done && !r.reasoning.n && !memmem(p.text, p.n, "think>", 6) &&
                !memmem(p.text, p.n, "[THINK]", 7)) {
                cr_assert(r.text.n == p.n && !memcmp(r.text.data ? r.text.data : "", p.text, p.n),
                          "%s: %.*s\n%s", f->format, (int)p.n, p.text, (char *)r.log.data);
                n_text++;
            }
            reading_fini(&r);
            gr_prompt_free(&p);
            json_decref(calls);
            free(tools);
        }
    }
    cr_expect(n_text > 300 && n_done > 300, "%d, %d", n_text, n_done);
}
