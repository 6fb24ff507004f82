/* Limits, errors with their places, marked input, and memory of chat templates. */
#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"
#include "gr/status.h"
#include "text/utf8.h"

static int render(const char *text, const char *json, struct gr_prompt *p)
{
    struct gr_template *t = NULL;
    *p = (struct gr_prompt){0};
    int rc = gr_template_new(&t, text, strlen(text));
    if (!rc)
        rc = gr_template_render(t, json, strlen(json), 0, p);
    gr_template_free(&t);
    return rc;
}

/* Expects an error of the template with these words. */
static void expect_error(const char *text, const char *words)
{
    struct gr_prompt p;
    int rc = render(text, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}", &p);
    cr_expect(rc == GR_E_TEMPLATE && strstr(gr_error_message(), words), "%s: %d, %s", text, rc,
              rc ? gr_error_message() : p.text);
    cr_expect(!strchr(gr_error_message(), '\n'), "%s", gr_error_message());
    cr_expect(!p.text && !p.input, "empty after an error");
    gr_prompt_free(&p);
}

Test(errors, have_line_and_column)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"a\n  {{ 1 + 'x' }}",
         "line 2, column 8: unsupported operand type(s) for +: 'int' and 'str'"},
        {"\xc3\xa9{{ x.y }}", "line 1, column 6: 'x' is undefined"},
        {"{{ messages[3].role }}", "list object has no element 3"},
        {"{{ messages[0].reply.x }}", "'dict object' has no attribute 'reply'"},
        {"{% if x %}\n{% for y in z %}\n{% endfor %}", "line 3, column 13: 'elif' is missing"},
        {"a\n\n{{ [1, 2 }}", "line 3"},
        {"{{ 'abc }}", "column 4: the string has no end"},
        {"{# a", "column 1: the comment has no end"},
        {"{% raw %}{{ x }}", "column 1: the raw block has no end"},
        {"{{ 1|what }}", "column 6: no filter named what"},
        {"{{ 1 is what }}", "no test named what"},
        {"{% include 'x' %}", "unknown tag 'include'"},
        {"{% for x in [1] recursive %}{% endfor %}", "recursive loops are not supported"},
        {"{{ 9223372036854775807 + 1 }}", "does not fit 64 bits"},
        {"{{ 9223372036854775808 }}", "does not fit 64 bits"},
        {"{{ 'a' < 1 }}", "'<' not supported between instances of 'str' and 'int'"},
        {"{{ messages() }}", "'list' object is not callable"},
        {"{% set messages.x = 1 %}", "an attribute can be set of a namespace only"},
        {"{{ 'x'|replace('a') }}", "replace: the argument 'new' is missing"},
        {"{{ 'x'|trim(1, 2) }}", "trim: 2 arguments, at most 1 are expected"},
        {"{{ 'x'|trim(what=1) }}", "trim: the argument 'what' is unknown"},
        {"{% break %}", "'break' outside of a loop"},
        {"{{ {}|tojson(indent=2)|x.y }}", "no filter named x.y"},
        {"\xff", "column 1: the template is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].text, cases[i].words);
}

Test(errors, of_a_template_are_its_own_words)
{
    struct gr_prompt p;
    cr_expect_eq(render("{{ raise_exception('Roles\\nmust alternate') }}", "{}", &p),
                 GR_E_TEMPLATE);
    cr_expect_str_eq(gr_error_message(), "Roles must alternate");
}

Test(errors, of_the_variables)
{
    struct gr_prompt p;
    cr_expect_eq(render("x", "{\"a\": ]", &p), GR_E_INVALID);
    cr_expect(strstr(gr_error_message(), "line 1, column 7"), "%s", gr_error_message());
    cr_expect_eq(render("x", "[1]", &p), GR_E_INVALID);
    cr_expect_eq(render("x", "", &p), GR_E_INVALID);
}

/* A name that is cut for the message is cut between characters. */
Test(errors, are_utf8)
{
    for (int lead = 0; lead < 4; lead++) {
        char text[1400] = "{{ ", *p = text + 3;
        struct gr_prompt prompt;
        uint32_t cp;
        for (int i = 0; i < lead; i++)
            *p++ = 'a';
        for (int i = 0; i < 250; i++)
            p = stpcpy(p, "\xe4\xbd\xa0"); /* a letter of 3 bytes */
        strcpy(p, ".x }}");
        cr_expect_eq(render(text, "{}", &prompt), GR_E_TEMPLATE);
        const char *e = gr_error_message();
        for (size_t i = 0, n = strlen(e); i < n; i += gr_utf8_step(e + i, n - i))
            cr_assert_gt(gr_utf8_next(e + i, n - i, &cp), 0, "%s", e);
    }
}

/* `count` times `part` between `before` and `after` (free). */
static char *repeated(const char *before, const char *part, size_t count, const char *after)
{
    size_t n = strlen(part);
    char *s = malloc(strlen(before) + n * count + strlen(after) + 1), *p = s;
    p = stpcpy(p, before);
    for (size_t i = 0; i < count; i++)
        p = stpcpy(p, part);
    strcpy(p, after);
    return s;
}

Test(limits, stop_bombs, .timeout = 60)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
         "more than 1000000 steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
         "macros call each other deeper than 64"},
        {"{% set x = 'aaaaaaaaaaaaaaaa' * 65536 %}{{ x }}{{ x }}{{ x }}{{ x }}{{ x }}",
         "the output is longer than 4 MiB"},
        {"{{ 'a' * 1000000000000 }}", "MiB"},
        {"{{ [0] * 10000000 }}", "steps"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}"
         "{{ ns.x }}",
         "nested deeper than 128"},
        {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "nested deeper than 128"},
        {"{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% "
         "endfor %}",
         "MiB"},
        {"{% set x = 'ab' * 1000000 %}{% for i in range(100000) %}{{ 'c' in x }}{% endfor %}",
         "steps"},
        {"{{ '%1000000d' % 1 }}", "a width of more than 10000"},
        {"{{ range(1000000) }}", "a range of more than 100000 items"},
        {"{{ 2 ** 1000000 }}", "does not fit 64 bits"},
        {"{% set ns = namespace(t=(1, 2)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) "
         "%}{% endfor %}{{ {ns.t: 1} }}",
         "steps"},
        {"{% set x = 'a' * 100000 %}{{ x.rfind('a' * 50000 + 'b') }}", "steps"},
        {"{% for i in range(100000) %}{% set x = '%9999s' % '' %}{% endfor %}", "steps"},
        {"{% set x = 'a' * 3000000 %}{% for i in range(100000) %}{{ x|length }}{% endfor %}",
         "steps"},
        {"{% set l = [] %}{% set x = l|map('list') %}{% set _ = l.append(x) %}{{ x|list }}",
         "iterators are nested deeper than 128"},
        {"{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = ns.x|select %}"
         "{% endfor %}{{ ns.x|list }}",
         "iterators are nested deeper than 128"},
        {"{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = ns.x|select %}"
         "{% endfor %}{{ ns.x|first }}",
         "iterators are nested deeper than 128"},
        {"{% set x = 'a' * 1000000 %}{{ x.strip('b' * 1000 + 'a') }}", "steps"},
        {"{% set x = 'a' * 1000000 %}{{ x.rstrip('b' * 1000 + 'a') }}", "steps"},
        {"{% set d = {} %}{% for i in range(6000) %}{% set _ = d.update({i: i}) %}{% endfor %}"
         "{% for i in range(6000) %}{% set _ = d.pop(i) %}{% endfor %}",
         "steps"},
        {"{{ ('[' + '[],' * 2000000 + '1]')|from_json }}", "JSON of more than 1048576 values"},
        {"{{ ('[' * 129 + ']' * 129)|from_json }}", "JSON is nested deeper than 128"},
        {"{{ range(0, 9223372036854775807, 5000000000000000000)[2:] }}", "does not fit 64 bits"},
        {"{{ '%*d' % (-9223372036854775807 - 1, 5) }}", "a width of more than 10000"},
        {"{{ '%.1001d' % 5 }}", "a precision of more than 1000"},
        {"{{ strftime_now('%5000d') }}", "strftime_now makes more than"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_error(cases[i].text, cases[i].words);
    char *deep = repeated("{{ ", "(", 1000, "1 }}"), *nested = repeated("", "{% if 1 %}", 1000, "");
    char *minus = repeated("{{ ", "-", 1000, "1 }}"), *names = repeated("", "{{ a }}", 200000, "");
    expect_error(deep, "nested deeper than 64");
    expect_error(nested, "nested deeper than 64");
    expect_error(minus, "nested deeper than 64");
    expect_error(names, "bytes; at most 1048576 are read");
    char *ifs = repeated("{{ 1", " if 1", 100000, " }}");
    char *params = repeated("{% macro m(a, b=1", ", c=1", 64, ") %}{% endmacro %}");
    expect_error(ifs, "more than 32 conditions in a row");
    expect_error(params, "more than 64 parameters");
    free(deep), free(nested), free(minus), free(names), free(ifs), free(params);
}

/* What reads all of a long text takes steps by its length: 5000 times are few for a short text and
 * too many for a long one. */
Test(limits, count_what_is_read, .timeout = 60)
{
    static const char *const ways[] = {
        "x.startswith(x)",
        "x.endswith((x,))",
        "x.removeprefix(x)|length",
        "x.removesuffix(x)|length",
        "x.startswith('a', 1)",
        "x.ljust(3) == 1",
        "x.rjust(3) == 1",
        "x.zfill(3) == 1",
        "x|center(3) == 1",
        "x|truncate(2000000) == 1",
        "x[1]",
        "x in x",
        "x.find(x)",
        "x.rfind(x)",
        "x.count(x)",
        "x.index('a', 1)",
        "x|wordcount",
        "x.splitlines()|length",
        "d[x]",
        "x in d",
        "d.get(x)",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        for (int large = 0; large < 2; large++) {
            char text[300];
            struct gr_prompt p;
            snprintf(text, sizeof text,
                     "{%% set x = 'a' * %d %%}{%% set d = {x: 1} %%}{%% for i in range(5000) %%}"
                     "{%% if %s %%}{%% endif %%}{%% endfor %%}",
                     large ? 1000000 : 20, ways[i]);
            if (large)
                expect_error(text, "steps");
            else
                cr_expect(!render(text, "{}", &p), "%s: %s", ways[i], gr_error_message());
            gr_prompt_free(&p);
        }
    }
}

Test(limits, of_the_variables)
{
    struct gr_prompt p;
    char *values = repeated("{\"a\": [0", ",0", 1 << 20, "]}");
    char *deep = repeated("{\"a\": ", "[", 200, "");
    char *quoted = repeated("{\"a\": \"\\\"", ",[", 1 << 20, "\"}");
    cr_expect_eq(render("x", values, &p), GR_E_INVALID);
    cr_expect(strstr(gr_error_message(), "more than 1048576 values"), "%s", gr_error_message());
    cr_expect_eq(render("x", deep, &p), GR_E_INVALID);
    cr_expect(strstr(gr_error_message(), "deeper than 128"), "%s", gr_error_message());
    cr_expect(!render("{{ a|length }}", quoted, &p) && !strcmp(p.text, "2097153"), "%s",
              gr_error_message());
    gr_prompt_free(&p);
    free(values), free(deep), free(quoted);
}

/* A long sum, a long chain of conditions and a long text built piece by piece are no bombs. */
Test(limits, leave_long_templates, .timeout = 60)
{
    struct gr_prompt p;
    char *sum = repeated("{{ 0", " + 1", 5000, " }}");
    char *chain = repeated("{% if 0 %}", "{% elif 0 %}", 2000, "{% else %}x{% endif %}");
    cr_expect(!render(sum, "{}", &p) && !strcmp(p.text, "5000"), "%s", gr_error_message());
    gr_prompt_free(&p);
    cr_expect(!render(chain, "{}", &p) && !strcmp(p.text, "x"), "%s", gr_error_message());
    gr_prompt_free(&p);
    cr_expect(
        !render("{% set ns = namespace(x='') %}{% for i in range(50000) %}{% set ns.x = ns.x + "
                "'0123456789' %}{% endfor %}{{ ns.x|length }}",
                "{}", &p) &&
            !strcmp(p.text, "500000"),
        "%s", gr_error_message());
    gr_prompt_free(&p);
    free(sum), free(chain);
}

/* ---- marks ---- */

/* The text with [ and ] around its marked parts. */
static void expect_marks(const char *text, const char *json, const char *want)
{
    struct gr_prompt p;
    char got[512];
    size_t k = 0;
    int rc = render(text, json, &p);
    cr_assert(!rc, "%s: %s", text, gr_error_message());
    for (size_t i = 0, s = 0; i <= p.n && k + 4 < sizeof got; i++) {
        if (s < p.n_input && p.input[s].hi == i)
            got[k++] = ']', s++;
        if (s < p.n_input && p.input[s].lo == i)
            got[k++] = '[';
        if (i < p.n)
            got[k++] = p.text[i];
    }
    got[k] = 0;
    cr_expect_str_eq(got, want, "%s: %s, expected %s", text, got, want);
    gr_prompt_free(&p);
}

Test(marks, follow_the_input)
{
    static const char json[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \" Ab-Cd \"}, "
        "{\"role\": \"<x>\", \"content\": \"q\"}, {\"content\": "
        "\"{0.z!s:<<1}{0.z!s:|<2}{0.z!s:i<1}{0.z!s:m>1}{0.z!s:>>1}\"}], \"bos_token\": \"<s>\", "
        "\"date\": \"today\", \"tools\": [{\"name\": \"f\", \"n\": 1}]}";
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{{ bos_token }}<|{{ messages[0].role }}|>{{ messages[0].content }}<|end|>",
         "<s><|user|>[ Ab-Cd ]<|end|>"},
        {"{{ '<' + messages[0].content + '>' }}", "<[ Ab-Cd ]>"},
        {"{{ '<' ~ messages[0].content ~ '>' }}", "<[ Ab-Cd ]>"},
        {"{{ messages[0].content|trim }}x", "[Ab-Cd]x"},
        {"{{ messages[0].content[1:3] }}{{ messages[0].content[::-1] }}", "[Ab dC-bA ]"},
        {"{{ messages[0].content.split('-')|join('+') }}", "[ Ab]+[Cd ]"},
        {"{{ messages[0].content|upper|replace('B', 'xx') }}", "[ A]xx[-CD ]"},
        {"{{ 'a%sb' % messages[0].content.strip() }}{{ '{}!'.format(messages[1].content) }}",
         "a[Ab-Cd]b[q]!"},
        {"{{ messages[1].content|tojson }}{{ tools[0]|tojson }}",
         "\"[q]\"{\"[name]\": \"[f]\", \"[n]\": 1}"},
        {"{{ (messages[1].content,) }}", "('[q]',)"},
        {"{{ messages[1].role }}{{ date }}", "[<x>today]"},
        {"{% set x %}a{{ messages[1].content }}b{% endset %}{{ x|upper }}{{ x|indent(2, true) }}",
         "A[Q]B  a[q]b"},
        {"{% macro m(x) %}({{ x }}){% endmacro %}{{ m(messages[1].content) }}", "([q])"},
        {"{{ messages[2].content.format('Bob') }}", "[<||im>]"},
        {"{{ messages[0].content.partition('-')[1] }}{{ 'a-b'.partition('-')|join }}", "[-]a-b"},
        {"{{ messages[0].content.rpartition('-')|join }}", "[ Ab-Cd ]"},
        {"{{ strftime_now(messages[1].content) }}{{ strftime_now('%%q') }}", "[q]%q"},
        {"{{ [1, 2]|tojson(indent=messages[1].content) }}", "[\n[q]1,\n[q]2\n]"},
        {"{{ {'a': 1, 'b': 2}|tojson(separators=(messages[1].content, ':')) }}",
         "{\"a\":1[q]\"b\":2}"},
        {"{{ {'a': 1}|tojson(separators=(',', messages[1].content)) }}", "{\"a\"[q]1}"},
        {"{{ messages[0].content|length }}{{ messages[1].content == 'q' }}", "7True"},
        {"{{ '<b>'|safe + messages[1].content }}{{ messages[1].content * 2 }}", "<b>[qqq]"},
        {"{{ ('{\"a\": \"' + messages[1].content + '\"}')|from_json }}", "{'[a]': '[q]'}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_marks(cases[i].text, json, cases[i].want);
}

/* Everything that can be done to a marked text leaves its bytes marked: a byte that only the input
 * has never shows up outside of the marked parts. */
Test(marks, are_never_lost)
{
    static const char *const ways[] = {
        "x",
        "x|trim",
        "x|upper",
        "x|lower",
        "x|title",
        "x|capitalize",
        "x|replace('a', 'b')",
        "x|indent",
        "x|list|join('-')",
        "x|reverse",
        "x[1:]",
        "x[::2]",
        "x.split('a')",
        "x.partition('a')",
        "x.partition('z')",
        "x.rpartition('z')",
        "x.partition('z')[1]",
        "[1]|tojson(indent=x)",
        "[1, 2]|tojson(separators=(x, x))",
        "strftime_now(x)",
        "('{0.q!s:' ~ x[1] ~ '<9}').format(1)",
        "x|tojson",
        "x|string",
        "x|e",
        "x|truncate(5)",
        "x|center(20)",
        "x ~ 'a'",
        "'a' + x",
        "'%s' % x",
        "'%r' % x",
        "'{}'.format(x)",
        "'{!r}'.format(x)",
        "x|first",
        "x|last",
        "{'k': x}",
        "[x]|map('upper')|list",
        "x.strip().splitlines()",
        "x.zfill(20)",
        "x.rjust(20)",
        "('[\"' + x + '\"]')|from_json",
        "x|sort|join",
        "x|unique|join",
        "x|batch(2)|list",
        "dict(a=x).values()|list",
        "x|urlencode",
        "x.swapcase()",
        "x.rsplit('a')",
        "namespace(x=x).x",
        "x|min",
        "(x, 1)|max if false else x",
        "x if x else 1",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char text[128];
        struct gr_prompt p;
        snprintf(text, sizeof text, "{{ %s }}", ways[i]);
        int rc = render(text, "{\"x\": \" zaz\\u00e4Zaz \"}", &p);
        cr_assert(!rc, "%s: %s", text, gr_error_message());
        size_t s = 0, seen = 0;
        for (size_t k = 0; k < p.n; k++) {
            while (s < p.n_input && p.input[s].hi <= k)
                s++;
            bool marked = s < p.n_input && p.input[s].lo <= k;
            bool ours = p.text[k] == 'z' || p.text[k] == 'Z' || (p.text[k] & 0x80);
            cr_expect(!ours || marked, "%s: byte %zu of %s", text, k, p.text);
            seen += ours;
        }
        cr_expect(seen || !strcmp(ways[i], "x|first") || !strcmp(ways[i], "x|last") ||
                      !strcmp(ways[i], "x|min"),
                  "%s gives %s", text, p.text);
        gr_prompt_free(&p);
    }
}

/* ---- results ---- */

/* Results of Python's that are easily missed; x is "aXa". */
Test(results, are_pythons)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{{ 'abc'.find('', 2, 1) }} {{ 'abc'.rfind('', 2, 1) }} {{ 'abc'.count('', 2, 1) }}",
         "-1 -1 0"},
        {"{{ 'abc'.startswith('', 2, 1) }} {{ 'abc'.endswith('', 2, 1) }}", "False False"},
        {"{{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'abc'.startswith('', 3) }}",
         "3 -1 True"},
        {"{{ 'abc'.find('c', none, none) }} {{ 'abc'.find('b', -2, -1) }}", "2 1"},
        {"{{ 'abc'.find('a', -1) }} {{ 'abc'.count('', -9, 9) }}", "-1 4"},
        {"{{ 'abc'|truncate(9223372036854775807) }}", "abc"},
        {"{{ 'abc'|center(-9223372036854775807 - 1) }}", "abc"},
        {"{{ ('abcdefgh, ' * 3100).rsplit(',')|length }}", "3101"},
        {"{{ 'a'.join(['b'] * 40000).rsplit('a', 1)|map('length')|join(' ') }}", "79997 1"},
        {"{{ '  a '.strip(' ') }}{{ 'xyaxy'.strip('xy') }}{{ 'xyaxy'.rstrip('yx') }}", "aaxya"},
        {"{{ x\xc2\xa0}}{{\xe2\x80\x83x }}", "aXaaXa"},
        {"{% set gr\xc3\xb6\xc3\x9f"
         "e = 2 %}{{ gr\xc3\xb6\xc3\x9f"
         "e + 1 }}",
         "3"},
        {"{{ '{:05}|{:<05}|{:*>05}'.format('a', 'b', 'c') }}", "a0000|b0000|****c"},
        {"{{ '{:_x} {:_b} {:,}'.format(1048575, 37, 1234567) }}", "f_ffff 10_0101 1,234,567"},
        {"{{ '{:_}|{:,.2f}|{:,.1e}'.format(1234567, 1234.5, 1e20) }}",
         "1_234_567|1,234.50|1.0e+20"},
        {"{{ '%c%c' % (65, 8364) }}", "A\xe2\x82\xac"},
        {"{{ '%.5d' % 42 }} {{ ('%.500d' % 5)|length }}", "00042 500"},
        {"{{ '%.*f' % (-3, 2.5) }} {{ '%.f' % 3.5 }}", "2 4"},
        {"{{ 1.5 }} {{ '1.5'|float + 1 }} {{ '%.2f' % 2.5 }} {{ [1.5]|tojson }}",
         "1.5 2.5 2.50 [1.5]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gr_prompt p;
        int rc = render(cases[i].text, "{\"x\": \"aXa\"}", &p);
        cr_expect(!rc && !strcmp(p.text, cases[i].want), "%s: %s", cases[i].text,
                  rc ? gr_error_message() : p.text);
        gr_prompt_free(&p);
    }
    expect_error("{{ x\xe2\x80\x94y }}", "unexpected character");
    expect_error("{{ '%c' % 55296 }}", "55296 is no character");
    expect_error("{{ 'abc'.index('', 2, 1) }}", "substring not found");
}

/* The program's locale changes no result, and is the program's afterwards. C.UTF-8 stands in where
 * no locale with a decimal comma is installed. */
Test(results, are_the_same_in_every_locale)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "nl_NL.UTF-8",
                                        "ru_RU.UTF-8", "de_DE",       "C.UTF-8"};
    locale_t locale = (locale_t)0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !locale; i++)
        locale = newlocale(LC_ALL_MASK, names[i], (locale_t)0);
    cr_assert(locale);
    locale_t was = uselocale(locale);
    struct gr_prompt p;
    cr_expect(!render("{{ 1.5 }} {{ a }} {{ '2.5'|float }} {{ '%.1f' % 3.5 }} {{ [4.5]|tojson }} "
                      "{{ '[5.5]'|from_json }} {{ strftime_now('%A')[-3:] }}",
                      "{\"a\": 6.5}", &p) &&
                  !strcmp(p.text, "1.5 6.5 2.5 3.5 [4.5] [5.5] day"),
              "%s", p.text ? p.text : gr_error_message());
    cr_expect(uselocale((locale_t)0) == locale, "the caller's locale stays");
    gr_prompt_free(&p);
    cr_expect_eq(render("{{ 1 + 'x' }}", "{}", &p), GR_E_TEMPLATE);
    cr_expect(uselocale((locale_t)0) == locale, "it stays after an error");
    uselocale(was);
    freelocale(locale);
}

/* ---- reuse and memory ---- */

Test(templates, are_rendered_many_times)
{
    struct gr_template *t;
    static const char text[] =
        "{% set ns = namespace(x=[]) %}{% set _ = ns.x.append(a) %}{{ ns.x }}";
    cr_assert_eq(gr_template_new(&t, text, sizeof text - 1), 0);
    for (int i = 0; i < 3; i++) {
        struct gr_prompt p;
        char json[32], want[32];
        snprintf(json, sizeof json, "{\"a\": %d}", i);
        snprintf(want, sizeof want, "[%d]", i);
        cr_assert_eq(gr_template_render(t, json, strlen(json), 0, &p), 0);
        cr_expect_str_eq(p.text, want);
        gr_prompt_free(&p);
    }
    gr_template_free(&t);
    gr_template_free(&t);
    gr_prompt_free(NULL);
}

Test(templates, survive_every_failing_allocation, .timeout = 60)
{
    static const char text[] =
        "{% macro m(x, y='d') %}{{ x ~ y }}{% endmacro %}{% for k, v in messages[0].items() if v "
        "%}{{ k|upper }}"
        "{{ m(v|tojson) }}{{ '%s' % v }}{% endfor %}{% set z %}{{ messages }}{% endset %}{{ "
        "z[::2]|replace('a', 'b') }}"
        "{{ [3, 1]|sort }}{{ {'a': 1}|dictsort }}{% call m(1) %}{% endcall %}";
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}]}";
    size_t before = gr_alloc_held(NULL);
    for (uint64_t k = 1; k < 5000; k++) {
        struct gr_prompt p;
        gr_alloc_fail_at(k, 0);
        int rc = render(text, json, &p);
        uint64_t made = gr_alloc_fail_at(0, 0);
        cr_expect(rc == 0 || rc == GR_E_NOMEM_HOST || rc == GR_E_TEMPLATE, "%d: %s", rc,
                  gr_error_message());
        gr_prompt_free(&p);
        cr_expect_eq(gr_alloc_held(NULL), before, "allocation %llu", (unsigned long long)k);
        if (made < k)
            return;
    }
    cr_expect(false, "no end of allocations");
}
