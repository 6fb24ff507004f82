/* Texts that grammars and schemas accept or refuse: as other programs do (tests/golden/grammar),
 * and what is wrong with grammars that are refused. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "gr/status.h"

TestSuite(grammar_texts, .timeout = 120);

static json_t *read_cases(void)
{
    json_error_t e;
    json_t *all = json_load_file(GR_SOURCE_DIR "/tests/golden/grammar/cases.json", 0, &e);
    cr_assert(all, "%s", e.text);
    return all;
}

static size_t check_cases(const char *list, const char *key, const char *texts, bool schema)
{
    json_t *all = read_cases(), *cases = json_object_get(all, list), *wanted;
    const char *text;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const char *source = json_string_value(json_object_get(json_array_get(cases, i), key));
        struct gr_grammar_state *s = schema ? open_schema(source) : open_gbnf(source);
        json_object_foreach(json_object_get(json_array_get(cases, i), texts), text, wanted)
        {
            cr_expect_eq(accepts(s, text), json_is_true(wanted), "%s\n%s", source, text);
            n++;
        }
        gr_grammar_state_free(&s);
    }
    json_decref(all);
    return n;
}

Test(grammar_texts, grammars_as_llguidance_reads_them)
{
    cr_expect_gt(check_cases("grammars", "gbnf", "texts", false), 600);
}

Test(grammar_texts, schemas_as_jsonschema_reads_them)
{
    cr_expect_gt(check_cases("schemas", "schema", "values", true), 400);
}

static void expect_refused(const char *source, bool schema, const char *message)
{
    struct gr_grammar *g = NULL;
    int rc = (schema ? gr_grammar_from_schema : gr_grammar_from_gbnf)(&g, source, strlen(source),
                                                                      byte_trie());
    cr_expect_eq(rc, GR_E_INVALID, "%s", source);
    cr_expect(strstr(gr_error(), message) && !strchr(gr_error(), '\n'), "%s\n%s\n%s", source,
              message, gr_error());
    cr_expect_null(g);
    gr_grammar_free(&g);
}

Test(grammar_texts, what_is_wrong_with_a_grammar)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "no rule root"},
        {"x ::= \"a\"", "no rule root"},
        {"root", "line 1, column 5: ::= expected, but the text ends"},
        {"root = \"a\"", "line 1, column 6: ::= expected, '=' found"},
        {"root ::= a \"x\"\n", "line 1, column 10: rule 'a' is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is already defined"},
        {"root ::= \"\xc3\xa9\" ?? )", "line 1, column 17: this ) closes no group"},
        {"root ::= (\"a\" | (\"b\"\n", "line 1, column 17: this group has no closing )"},
        {"root ::= \"abc", "line 1, column 10: this text has no closing quote"},
        {"root ::= [a-z", "line 1, column 10: this class has no closing ]"},
        {"root ::= []", "line 1, column 10: this class has no characters"},
        {"root ::= [z-a]", "line 1, column 11: this range ends before it begins"},
        {"root ::= \"\\q\"", "line 1, column 11: unknown escape"},
        {"root ::= \"\\x4\"", "line 1, column 11: 2 hexadecimal digits expected"},
        {"root ::= \"\\uD800\"", "line 1, column 11: U+D800 is no character"},
        {"root ::= \"\\U00110000\"", "U+110000 is no character"},
        {"root ::= \"\xff\"", "line 1, column 11: the text is not UTF-8"},
        {"root ::= *", "line 1, column 10: there is nothing in front of '*' to repeat"},
        {"root ::= \"a\" | +", "line 1, column 16: there is nothing in front of '+'"},
        {"root ::= \"a\"{", "line 1, column 14: a number expected"},
        {"root ::= \"a\"{2", "} expected, but the text ends"},
        {"root ::= \"a\"{3,1}", "line 1, column 13: at least 3 and at most 1"},
        {"root ::= \"a\"{9999999}", "at most 1048576 repetitions"},
        {"root ::= <[258]>", "token 258, but the vocabulary ends at 257"},
        {"root ::= <[256]>", "this token ends a text"},
        {"root ::= <nope>", "'<nope>' is not one token of the vocabulary"},
        {"root ::= <[1", "]> expected"},
        {"root ::= !\"a\"", "a token, <...>, expected"},
        {"root ::= root \"x\" | \"y\"", "line 1, column 1: rule root begins with itself"},
        {"root ::= a\na ::= \"x\"? b\nb ::= a \"y\" | \"z\"",
         "line 2, column 1: rule a begins with itself (left recursion, by way of -> b)"},
        {"root ::= (root)*", "begins with itself"},
        {"root ::= \"a\" root", "no text fits it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].text, false, cases[i].message);
}

Test(grammar_texts, what_is_wrong_with_a_schema)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{", "JSON schema, line 1"},
        {"{\"type\": \"strin\"}", "at '/type': null, boolean"},
        {"{\"properties\": {\"a/b\": {\"not\": {}}}}",
         "at '/properties/a~1b/not': not is not supported"},
        {"{\"items\": {\"uniqueItems\": true}}", "at '/items/uniqueItems'"},
        {"{\"type\": \"number\", \"minimum\": 1}", "at '/minimum': bounds are supported"},
        {"{\"$ref\": \"#/$defs/a\"}", "at '/$ref': '#/$defs/a' leads nowhere"},
        {"{\"$ref\": \"http://x.y\"}", "references are JSON pointers"},
        {"{\"oneOf\": [{\"type\": \"number\"}, {\"type\": \"integer\"}]}", "at '/oneOf/1'"},
        {"{\"type\": \"string\", \"pattern\": \"a(?=b)\"}", "pattern, character 3: groups (?="},
        {"{\"type\": \"string\", \"pattern\": \"a\\\\bc\"}", "this escape is not supported"},
        {"{\"type\": \"string\", \"pattern\": \"(a\"}", "a group without its )"},
        {"{\"type\": \"string\", \"pattern\": \"a$b\"}", "at the ends of the pattern alone"},
        {"{\"type\": \"string\", \"pattern\": \"^a*$\", \"maxLength\": 3}", "at '/maxLength'"},
        {"{\"type\": \"string\", \"format\": \"color\"}", "format 'color' is not supported"},
        {"{\"enum\": [\"ab\"], \"pattern\": \"a\"}", "beside pattern"},
        {"{\"type\": \"string\", \"pattern\": \"\\\\01\"}", "this escape is not supported"},
        {"{\"oneOf\": [{\"const\": [1]}, {\"const\": [1.0]}]}", "at '/oneOf/1': a value may match"},
        {"{\"oneOf\": [{\"const\": {\"a\": [2.0]}}, {\"const\": {\"a\": [2]}}]}",
         "a value may match"},
        {"{\"enum\": [9007199254740993], \"const\": 9007199254740992}", "no text fits it"},
        {"{\"enum\": [9007199254740993], \"const\": 9007199254740992.0}", "no text fits it"},
        {"{\"type\": \"integer\", \"maximum\": -1e19}", "no text fits it"},
        {"{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}",
         "at '': it refers to itself without a value in between"},
        {"{\"oneOf\": [{\"type\": \"null\"}, {\"allOf\": [{\"$ref\": \"#\"}]}]}",
         "it refers to itself without a value in between"},
        {"{\"minProperties\": 2}", "at '/minProperties'"},
        {"{\"required\": [1]}", "a list of names is expected"},
        {"{\"anyOf\": []}", "a list of schemas is expected"},
        {"{\"minLength\": -1}", "a whole number from 0 on"},
        {"{\"items\": [{}]}", "a schema, which is an object"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"false", "no text fits it"},
        {"{\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}", "no text fits it"},
        {"{\"type\": \"object\", \"properties\": {\"a\": false}, \"required\": [\"a\"]}",
         "no text fits it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].text, true, cases[i].message);
}

Test(grammar_texts, parts_of_the_notation)
{
    static const struct {
        const char *grammar, *yes, *no;
    } cases[] = {
        {"# a comment\nroot ::= # another\n \"a\" | # and\n \"b\"", "b", "ab"},
        {"root ::= (\n \"a\"\n # inside\n \"b\" )+\r\n", "abab", "aba"},
        {"root ::= [\\x41-\\u0043\\-\\]^]{2}", "A^", "D^"},
        {"root ::= [^a-c\\n]", "\xf0\x9f\x98\x80", "\n"},
        {"root ::= .", "\n", ""},
        {"root ::= [a-]+", "-a-", "b"},
        {"root ::= \"\\U0001F600\\\"\\\\\\[\\t\"", "\xf0\x9f\x98\x80\"\\[\t", "x"},
        {"root ::= \"a\"{ 2 , 3 } \"b\"{,2}", "aa", "a"},
        {"root ::= \"a\"{0}\"b\"", "b", "ab"},
        {"root ::= (\"\" | \"a\"? \"b\"?)* \"c\"", "abbac", "ca"},
        {"root ::= ((\"a\"*)* | ())+", "aaa", "b"},
        {"root ::= x_1-y\nx_1-y ::= \"(\" x_1-y? \")\"", "((()))", "(()"},
        {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"", "aaaabccb", "aabcb"},
        {"root ::= \"x\"{70000} | \"y\"", "y", "x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strstr(cases[i].grammar, "{,")) {
            expect_refused(cases[i].grammar, false, "a number expected");
            continue;
        }
        struct gr_grammar_state *s = open_gbnf(cases[i].grammar);
        cr_expect(accepts(s, cases[i].yes), "%s: %s", cases[i].grammar, cases[i].yes);
        cr_expect(!accepts(s, cases[i].no), "%s: %s", cases[i].grammar, cases[i].no);
        gr_grammar_state_free(&s);
    }
}

Test(grammar_texts, limits)
{
    static char text[GR_GRAMMAR_MAX_SOURCE + 2];
    struct gr_grammar *g;
    memset(text, ' ', sizeof text - 1);
    cr_expect_eq(gr_grammar_from_gbnf(&g, text, sizeof text - 1, byte_trie()), GR_E_TOO_LARGE);
    cr_expect_eq(gr_grammar_from_schema(&g, text, sizeof text - 1, byte_trie()), GR_E_TOO_LARGE);
    /* Groups in groups. */
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= ");
    memset(text + n, '(', 30000);
    text[n + 30000] = 0;
    expect_refused(text, false, "more than 128 groups within each other");
    /* Repetitions that multiply. */
    snprintf(text, sizeof text, "root ::= ((\"a\"{99999} \"b\"){99999} \"c\"){99999}");
    cr_expect_eq(gr_grammar_from_gbnf(&g, text, strlen(text), byte_trie()), GR_E_TOO_LARGE);
    cr_expect(strstr(gr_error(), "repetitions"), "%s", gr_error());
    /* Sequences of parts that may all be empty, within each other. */
    n = (size_t)snprintf(text, sizeof text, "root ::= ");
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "(\"a\"? ");
    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "\"b\"?)?");
    int rc = gr_grammar_from_gbnf(&g, text, n, byte_trie());
    cr_expect(rc == 0 || rc == GR_E_TOO_LARGE, "%s", gr_error());
    gr_grammar_free(&g);
}

/* Repetitions within each other cost work, groups or not. */
Test(grammar_texts, repetitions_of_repetitions)
{
    static char text[8000];
    struct gr_grammar *g;
    struct gr_grammar_state *s = open_gbnf("root ::= \"a\"+*?++ \"b\"");
    const uint32_t *mask;
    cr_expect(accepts(s, "aab") && accepts(s, "b") && !accepts(s, "a"));
    gr_grammar_state_free(&s);
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= (\"!\"");
    for (int c = '0'; c < 'Z'; c++)
        n += (size_t)snprintf(text + n, sizeof text - n, "|\"%c\"", c);
    text[n++] = ')';
    memset(text + n, '+', 3900);
    int rc = gr_grammar_from_gbnf(&g, text, n + 3900, byte_trie());
    if (!rc) {
        s = state_of(g);
        rc = gr_grammar_allowed(s, &mask);
        gr_grammar_state_free(&s);
    }
    cr_expect_eq(rc, GR_E_TOO_LARGE, "%s", gr_error());
    cr_expect(strstr(gr_error(), "takes too long"), "%s", gr_error());
}

/* Lists of values, and of names, that are compared in pairs. */
Test(grammar_texts, comparisons_without_end)
{
    static char text[GR_GRAMMAR_MAX_SOURCE];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"$defs\": {\"a\": {\"required\": [\"x\"");
    for (int i = 0; i < 2000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",\"%d\"", i);
    n += (size_t)snprintf(text + n, sizeof text - n, "]}}, \"oneOf\": [true");
    n -= 4;
    for (int i = 0; i < 12; i++)
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s{\"type\": \"object\", \"allOf\": [{\"$ref\": \"#/$defs/a\"}, "
            "{\"allOf\": [{\"properties\": {\"t\": {\"const\": %d}}, \"required\": "
            "[\"t\"]}]}]}",
            i ? "," : "", i);
    snprintf(text + n, sizeof text - n, "]}");
    expect_refused(text, true, "comparing its values takes too long");
    /* Values by equality. */
    n = (size_t)snprintf(text, sizeof text, "{\"$defs\": {\"a\": {\"enum\": [1");
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",1");
    n += (size_t)snprintf(text + n, sizeof text - n, "], \"allOf\": [{\"enum\": [2");
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",2");
    n += (size_t)snprintf(text + n, sizeof text - n, "]}]}}, \"properties\": {");
    for (int i = 0; i < 20; i++)
        n +=
            (size_t)snprintf(text + n, sizeof text - n,
                             "%s\"%d\": {\"allOf\": [{\"$ref\": \"#/$defs/a\"}]}", i ? "," : "", i);
    snprintf(text + n, sizeof text - n, "}}");
    expect_refused(text, true, "comparing its values takes too long");
    /* Values by all that holds for them. */
    n = (size_t)snprintf(text, sizeof text, "{\"$defs\": {\"a\": {\"enum\": [1");
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",1");
    n += (size_t)snprintf(text + n, sizeof text - n, "], \"allOf\": [{}");
    for (int i = 0; i < 240; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, ",{}");
    n += (size_t)snprintf(text + n, sizeof text - n, "]}}, \"properties\": {");
    for (int i = 0; i < 20; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%d\": {\"$ref\": \"#/$defs/a\"}",
                              i ? "," : "", i);
    snprintf(text + n, sizeof text - n, "}}");
    expect_refused(text, true, "comparing its values takes too long");
}

/* Long counts cost neither states nor time. */
Test(grammar_texts, counts_are_exact)
{
    static char text[70002];
    struct gr_grammar_state *s = open_gbnf("root ::= (\"a\" | \"\xc3\xa9\"){3,70000}");
    memset(text, 'a', sizeof text - 1);
    cr_expect(!accepts(s, text), "70001");
    text[70000] = 0;
    cr_expect(accepts(s, text), "70000");
    cr_expect(accepts(s, "aa\xc3\xa9") && !accepts(s, "a\xc3\xa9"));
    gr_grammar_state_free(&s);
}
