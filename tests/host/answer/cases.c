/* Answers as families of models write them, and what has to be read of each. */
#include "host/answer/read.h"

struct answer_case {
    const char *format, *prompt, *answer, *expected;
};

static void check(const struct answer_case *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct reading r;
        read_in_all_ways(&r, c[i].format, c[i].prompt, NULL, c[i].answer, strlen(c[i].answer));
        cr_expect_str_eq((char *)r.log.data, c[i].expected, "%s: %s\nread     %s\nexpected %s",
                         c[i].format, c[i].answer, (char *)r.log.data, c[i].expected);
        reading_fini(&r);
    }
}
#define CHECK(cases) check(cases, sizeof cases / sizeof *cases)

Test(answer, hermes)
{
    static const struct answer_case cases[] = {
        {"hermes", NULL, "Hello, \xc3\xa9!\n", "text(Hello, \xc3\xa9!\n)"},
        {"hermes", NULL, " \nHello", "text( \nHello)"},
        {"hermes", NULL, "", ""},
        {"hermes", NULL,
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
         "call0(f,)arguments0({\"a\": [1, \"}\"]})done0"},
        {"hermes", NULL,
         "<think>\nhm\n</think>\n\nI look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
         "{}}\n</tool_call>\n"
         "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"g\"}</tool_call>\n",
         "reasoning(hm)text(I look.)call0(f,)arguments0({})done0call1(g,)arguments1({\"x\": "
         "1})done1"},
        {"hermes", "<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nYes.",
         "reasoning(hm)text(Yes.)"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\"}</tool_call>",
         "call0(f,)arguments0({})done0"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
         "call0(f,)arguments0({})done0"},
        {"hermes", NULL,
         "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
         "call0(f,)arguments0({\"a\": 1})done0"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\\u00e9\", \"arguments\": {}}",
         "call0(f\xc3\xa9,)arguments0({})done0"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_",
         "call0(f,)arguments0({})done0"},
        {"hermes", NULL, "about <think> and </think>", "text(about <think> and </think>)"},
        {"hermes", NULL, "<think>no end", "reasoning(no end)"},
        {"hermes", NULL, "<think></think>x", "text(x)"},
        {"hermes", NULL, "a < b <tool", "text(a < b <tool)"},
        {"hermes", "<tool_call>\n", "{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
         "call0(f,)arguments0({})done0"},
        {"hermes", "<tool_call>\n", "oops", "text(oops)"},
    };
    CHECK(cases);
}

Test(answer, what_is_no_call_is_text)
{
    static const struct answer_case cases[] = {
        {"hermes", NULL, "<tool_call>\nno\n</tool_call>", "text(<tool_call>\nno\n</tool_call>)"},
        {"hermes", NULL,
         "x  <tool_call> {\"name\": \"f\", \"arguments\": {\"a\": }} </tool_call> y",
         "text(x)call0(f,)arguments0({\"a\": )withdrawn0"
         "text(  <tool_call> {\"name\": \"f\", \"arguments\": {\"a\": }} </tool_call> y)"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
         "call0(f,)arguments0({\"a\": 1)withdrawn0text(<tool_call>{\"name\": \"f\", \"arguments\": "
         "{\"a\": 1)"},
        {"hermes", NULL, "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
         "text(<tool_call>)call0(f,)arguments0({})done0"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"color\": 1}</tool_call>",
         "text(<tool_call>{\"name\": \"f\", \"color\": 1}</tool_call>)"},
        {"hermes", NULL, "<tool_call>{\"arguments\": {}}</tool_call>",
         "text(<tool_call>{\"arguments\": {}}</tool_call>)"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>",
         "text(<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>)"},
        {"hermes", NULL, "<tool_call>{\"name\": \"\"}</tool_call>",
         "text(<tool_call>{\"name\": \"\"}</tool_call>)"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
         "text(<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>)"},
        {"hermes", NULL, "<tool_call>{\"name\": \"f\xff\"}</tool_call>",
         "text(<tool_call>{\"name\": \"f\xff\"}</tool_call>)"},
        {"hermes", NULL, "<tool_call>[]</tool_call>", "text(<tool_call>[]</tool_call>)"},
        {"json", NULL, "{\"answer\": 3}", "text({\"answer\": 3})"},
        {"json", NULL, "[1, 2]", "text([1, 2])"},
        {"json", NULL, "See {\"name\": \"f\", \"arguments\": {}}",
         "text(See {\"name\": \"f\", \"arguments\": {}})"},
        {"mistral", NULL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 1]",
         "call0(f,)arguments0({})withdrawn0text([TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, "
         "1])"},
        {"mistral", NULL, "[TOOL_CALLS]", "text([TOOL_CALLS])"},
        {"qwen3-coder", NULL, "<tool_call>\n<function=f>\n<parameter=a>\n1",
         "text(<tool_call>\n<function=f>\n<parameter=a>\n1)"},
        {"functionary-v3.2", ">>>", "al", "text(al)"},
        {"functionary-v3.2", ">>>", "Hello", "text(Hello)"},
        {"plain", NULL, "<tool_call>{\"name\": \"f\"}</tool_call>",
         "text(<tool_call>{\"name\": \"f\"}</tool_call>)"},
    };
    CHECK(cases);
}

Test(answer, parameters_in_tags)
{
    static const struct answer_case cases[] = {
        {"qwen3-coder", NULL,
         "I look.\n<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\nx "
         "\"y\"\n\nz\n"
         "</parameter>\n<parameter=c>\nTrue\n</parameter>\n</function>\n</tool_call>",
         "text(I look.)call0(f,)arguments0({\"a\": 12, \"b\": \"x \\\"y\\\"\\n\\nz\", \"c\": "
         "true})done0"},
        {"qwen3-coder", NULL, "<tool_call>\n<function=f>\n</function>\n</tool_call>",
         "call0(f,)arguments0({})done0"},
        {"qwen3-coder", NULL,
         "<function=f>\n<parameter=a>\n{\"k\": [1]}\n</parameter>\n</function>\n</tool_call>",
         "call0(f,)arguments0({\"a\": {\"k\": [1]}})done0"},
        {"seed-oss", "<seed:bos>assistant\n<seed:think>",
         "hm</seed:think>I look.\n<seed:tool_call>\n<function=f>\n<parameter=a>12</parameter>\n"
         "<parameter=b>x\ny</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n"
         "<function=g>\n</function>\n</seed:tool_call>",
         "reasoning(hm)text(I look.)call0(f,)arguments0({\"a\": 12, \"b\": \"x\\ny\"})done0"
         "call1(g,)arguments1({})done1"},
        {"minimax-m2", "]~b]ai\n<think>\n",
         "hm\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">"
         "[1, 2]</parameter>\n<parameter name=\"b c\">\"x\"</parameter>\n</invoke>\n<invoke "
         "name=\"g\">\n</invoke>\n</minimax:tool_call>",
         "reasoning(hm)text(I look.)call0(f,)arguments0({\"a\": [1, 2], \"b c\": \"x\"})done0"
         "call1(g,)arguments1({})done1"},
        {"glm", NULL,
         "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</"
         "arg_key>\n<arg_value>[1, 2]"
         "</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
         "call0(f,)arguments0({\"a\": \"x\", \"b\": [1, 2]})done0call1(g,)arguments1({})done1"},
    };
    CHECK(cases);
}

/* An object of a model that has no tools is its answer. */
Test(answer, objects_without_tools)
{
    static const char answer[] = "{\"name\": \"Alice\"}",
                      marked[] = "<tool_call>{\"name\": \"f\"}</tool_call>";
    struct reading r;
    read_in_all_ways(&r, "json", NULL, "", answer, sizeof answer - 1);
    cr_expect_str_eq(r.log.data, "text({\"name\": \"Alice\"})");
    reading_fini(&r);
    read_in_all_ways(&r, "json", NULL, NULL, answer, sizeof answer - 1);
    cr_expect_eq(r.n_done, 1);
    reading_fini(&r);
    read_in_all_ways(&r, "hermes", NULL, "", marked, sizeof marked - 1);
    cr_expect_eq(r.n_done, 1);
    reading_fini(&r);
}

Test(answer, types_of_tools)
{
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": "
        "{\"a\": {\"type\": \"string\"}, \"b\": {\"type\": \"integer\"}}}}}]";
    static const char answer[] =
        "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\n12\n"
        "</parameter>\n</function>\n</tool_call>";
    struct reading r;
    read_in_all_ways(&r, "qwen3-coder", NULL, tools, answer, sizeof answer - 1);
    cr_expect_str_eq((char *)r.log.data, "call0(f,)arguments0({\"a\": \"12\", \"b\": 12})done0");
    reading_fini(&r);
}

Test(answer, lists_and_names)
{
    static const struct answer_case cases[] = {
        {"llama3", NULL, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
         "call0(f,)arguments0({\"a\": 1})done0"},
        {"llama3", NULL,
         "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
         "\"parameters\": {}}",
         "call0(f,)arguments0({})done0call1(g,)arguments1({})done1"},
        {"llama3", NULL, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
         "call0(f,)arguments0({})done0"},
        {"llama3", NULL,
         "<|python_tag|>brave_search.call(query=\"a, (b\", n=[1, 2], s='it\"s', t=True)",
         "call0(brave_search,)arguments0({\"query\": \"a, (b\", \"n\": [1, 2], \"s\": \"it\\\"s\", "
         "\"t\": true})done0"},
        {"llama3", NULL, "<|python_tag|>print(1)", "text(<|python_tag|>print(1))"},
        {"mistral", NULL,
         "Yes.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}]",
         "text(Yes.)call0(f,)arguments0({\"a\": 1})id0(123456789)done0"},
        {"mistral", NULL, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}",
         "call0(f,)arguments0({\"a\": 1})done0call1(g,x1)arguments1({})done1"},
        {"mistral", NULL, "[THINK]hm[/THINK]Yes", "reasoning(hm)text(Yes)"},
        {"command-r7b", NULL,
         "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
         "\"tool_name\": \"f\", "
         "\"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
         "reasoning(hm)call0(f,0)arguments0({\"a\": 1})done0"},
        {"command-r7b", NULL, "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "text(Yes.)"},
        {"command-r", NULL,
         "Action:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {}\n  "
         "  }\n]\n```",
         "call0(f,)arguments0({})done0"},
        {"functionary-v3.1", NULL, "<function=f>{\"a\": 1}</function>",
         "call0(f,)arguments0({\"a\": 1})done0"},
        {"functionary-v3.2", "<|end_header_id|>\n\n>>>", "all\nHello>>>f\n{\"a\": 1}>>>all_of\n{}",
         "text(Hello)call0(f,)arguments0({\"a\": 1})done0call1(all_of,)arguments1({})done1"},
        {"phi4-mini", NULL,
         "I look.<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
         "\"arguments\": {}}]<|/tool_call|>",
         "text(I look.)call0(f,)arguments0({\"a\": 1})call1(g,)arguments1({})done0done1"},
        {"phi4-mini", NULL, "functools[{\"name\": \"f\", \"arguments\": {}}]",
         "call0(f,)arguments0({})done0"},
        {"phi4-mini", NULL, "functools has partial", "text(functools has partial)"},
        {"granite3", NULL, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]",
         "call0(f,)arguments0({})done0"},
        {"kimi-k2", NULL,
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
         "}<|tool_call_end|>"
         "<|tool_calls_section_end|>",
         "call0(f,functions.f:0)arguments0({})done0"},
        {"json", NULL,
         "[{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
         "\"{}\"}}]",
         "call0(f,a)arguments0({})done0"},
        {"json", NULL,
         "{\"tool_calls\": [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": "
         "{}}]}",
         "call0(f,)arguments0({})call1(g,)arguments1({})done0done1"},
    };
    CHECK(cases);
}

#define B "<\xef\xbd\x9c" /* <｜ */
#define U "\xe2\x96\x81"  /* ▁ */
#define E "\xef\xbd\x9c>" /* ｜> */
#define D                                                                                          \
    "\xef\xbd\x9c"                                                                                 \
    "DSML"                                                                                         \
    "\xef\xbd\x9c" /* ｜DSML｜ */

/* Lists of calls as in Python, with what its strings and words are in JSON. */
Test(answer, lists_as_in_python)
{
    static const struct answer_case cases[] = {
        {"lfm2-tools", NULL,
         "I look.<|tool_call_start|>[f(a='it\\'s \"x\"', b=[1, 'y', None], c={'k': True, \"l\": "
         "-1.5})]<|tool_call_end|>So.",
         "text(I look.)call0(f,)arguments0({\"a\": \"it's \\\"x\\\"\", \"b\": [1, \"y\", null], "
         "\"c\": {\"k\": true, \"l\": -1.5}})done0text(So.)"},
        {"lfm2-tools", NULL,
         "<|tool_call_start|>[f(), g.h(a=\"]\"),k(b='\\x41\\n\\d')]<|tool_call_end|>",
         "call0(f,)arguments0({})call1(g.h,)arguments1({\"a\": \"]\"})call2(k,)arguments2({\"b\": "
         "\"\\u0041\\n\\\\d\"})done0done1done2"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a='x\ny')]",
         "call0(f,)arguments0({\"a\": \"x\\u000ay\"})done0"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(1)]<|tool_call_end|>",
         "text(<|tool_call_start|>[f(1)]<|tool_call_end|>)"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a=1), 2]",
         "call0(f,)arguments0({\"a\": 1})withdrawn0text(<|tool_call_start|>[f(a=1), 2])"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a=[1, 2)]",
         "text(<|tool_call_start|>[f(a=[1, 2)])"},
        {"lfm2-tools", NULL,
         "<|tool_call_start|>[f(a=(1, 'b',), b=( ), c=((2)), d=[1, ], e={'k': (3,), },)]",
         "call0(f,)arguments0({\"a\": [1, \"b\" ], \"b\": [ ], \"c\": 2, \"d\": [1  ], \"e\": "
         "{\"k\": [3 ]  }})done0"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a='\\U0001F600\\U000000e9\\Users')]",
         "call0(f,)arguments0({\"a\": \"\\ud83d\\ude00\\u00e9\\\\Users\"})done0"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a=[,])]",
         "call0(f,)arguments0({\"a\": )withdrawn0text(<|tool_call_start|>[f(a=[,])])"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a=[1,,])]",
         "call0(f,)arguments0({\"a\": )withdrawn0text(<|tool_call_start|>[f(a=[1,,])])"},
        {"lfm2-tools", NULL, "<|tool_call_start|>[f(a=(1])]",
         "call0(f,)arguments0({\"a\": )withdrawn0text(<|tool_call_start|>[f(a=(1])])"},
        {"llama4-pythonic", NULL,
         "<|python_start|>[get_weather(city=\"LA\", metric='C'), f()]<|python_end|>",
         "call0(get_weather,)arguments0({\"city\": \"LA\", \"metric\": "
         "\"C\"})call1(f,)arguments1({})done0done1"},
        {"llama4-pythonic", NULL, "[get_weather(city=\"]\")]",
         "call0(get_weather,)arguments0({\"city\": \"]\"})done0"},
        {"llama4-pythonic", NULL, "[1] and [f(a=1)]", "text([1] and [f(a=1)])"},
        {"llama4-pythonic", NULL, "<|python_start|>print(1)<|python_end|>",
         "text(<|python_start|>print(1))"},
        {"olmo3", NULL, "<think>hm</think><function_calls>f(a=1)\ng(b=False)</function_calls>",
         "reasoning(hm)call0(f,)arguments0({\"a\": 1})call1(g,)arguments1({\"b\": "
         "false})done0done1"},
    };
    CHECK(cases);
}

Test(answer, lists_between_marks)
{
    static const struct answer_case cases[] = {
        {"apertus-tools", NULL,
         "<|inner_prefix|>hm<|inner_suffix|><|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": "
         "{}}]<|tools_suffix|>",
         "reasoning(hm)call0(f,)arguments0({\"a\": 1})call1(g,)arguments1({})done0done1"},
        {"apertus-tools", NULL, "<|tools_prefix|>[{\"f\": 1}]<|tools_suffix|>",
         "text(<|tools_prefix|>[{\"f\": 1}]<|tools_suffix|>)"},
        {"nemotron-tools", NULL,
         "<think>\nhm\n</think>\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": "
         "\"x\"}}]</TOOLCALL>",
         "reasoning(hm)call0(f,)arguments0({\"a\": \"x\"})done0"},
        {"hunyuan", NULL,
         "<think>\nhm\n</think>\n<answer>\nI look.\n<tool_calls>\n[{\"name\": \"f\", "
         "\"arguments\": {}}]\n</tool_calls>\n</answer>",
         "reasoning(hm)text(I look.)call0(f,)arguments0({})done0"},
        {"hunyuan", NULL, "<think>\n\n</think>\n<answer>\nYes.\n</answer>", "text(Yes.)"},
        {"solar-open", "<|begin|>assistant",
         "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>"
         "f"
         "<|tool_call:args|>{\"a\": \"<|end|>\"}<|tool_call:end|><|tool_call:begin|>b2"
         "<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|><|calls|>",
         "reasoning(hm)call0(f,a1)arguments0({\"a\": "
         "\"<|end|>\"})done0call1(g,b2)arguments1({})done1"},
        {"solar-open", "<|begin|>assistant<|think|><|end|><|begin|>assistant",
         "<|content|>Hello<|end|>", "text(Hello)"},
        {"hy3", NULL,
         "<think:opensource>hm</think:opensource>I look.<tool_calls:opensource>\n"
         "<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a"
         "</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n"
         "</tool_call:opensource>\n</tool_calls:opensource>",
         "reasoning(hm)text(I look.)call0(f,)arguments0({\"a\": 1})done0"},
        {"gigachat3.1", NULL,
         "I look.<|function_call|>{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
         "text(I look.)call0(f,)arguments0({\"a\": 1})done0"},
        {"gigachat3", NULL,
         "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": "
         "{\"a\": 1}}",
         "text(I look.)call0(f,)arguments0({\"a\": 1})done0"},
        {"jamba-tools", NULL,
         "<tool_calls>[\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n]</tool_calls>",
         "call0(f,)arguments0({\"a\": 1})done0"},
        {"minimax-m1", NULL,
         "<think>\nhm\n</think>\n\nI look.\n<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"a\": "
         "1}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>",
         "reasoning(hm)text(I look.)call0(f,)arguments0({\"a\": "
         "1})call1(g,)arguments1({})done0done1"},
        {"minimax-m1", NULL, "<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n{}",
         "call0(f,)arguments0({})withdrawn0text(<tool_calls>\n{\"name\": \"f\", \"arguments\": "
         "{}}\n{})"},
        {"internlm2-tools", NULL,
         "I look.<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": "
         "1}}<|action_end|>",
         "text(I look.)call0(f,)arguments0({\"a\": 1})done0"},
        {"deepseek-v3.2", NULL,
         "why</think>Yes.\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D
         "parameter name=\"a\" string=\"true\">12</" D "parameter>\n<" D
         "parameter name=\"b\" string=\"false\">[1, \"x\"]</" D "parameter>\n</" D "invoke>\n<" D
         "invoke name=\"g\">\n</" D "invoke>\n</" D "function_calls>",
         "text(why</think>Yes.)call0(f,)arguments0({\"a\": \"12\", \"b\": [1, \"x\"]})done0"
         "call1(g,)arguments1({})done1"},
    };
    CHECK(cases);
}

Test(answer, arguments_of_gemma)
{
    static const struct answer_case cases[] = {
        {"gemma4", NULL,
         "<|channel>thought\nhm\n<channel|>I look.<|tool_call>call:f{city:<|\"|>S\xc3\xa3o "
         "\"P\"\\\n"
         "<|\"|>,days:3,at:[true,<|\"|>x<|\"|>,{k:null}]}<tool_call|><|tool_call>call:g{}"
         "<tool_call|><|tool_response>",
         "reasoning(hm)text(I look.)call0(f,)arguments0({\"city\": \"S\xc3\xa3o "
         "\\\"P\\\"\\\\\\u000a\", "
         "\"days\": 3, \"at\": [true, \"x\", {\"k\": null}]})done0call1(g,)arguments1({})done1"},
        {"gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "Yes.", "text(Yes.)"},
        {"gemma4", "<|channel>thought\n", "hm<channel|>Yes.", "reasoning(hm)text(Yes.)"},
        {"gemma4", NULL, "<|tool_call>call:f{a: None , b:New York,<|\"|>c d<|\"|>:\"\\u00e9}\"}",
         "call0(f,)arguments0({\"a\": null, \"b\": \"New York\", \"c d\": \"\\u00e9}\"})done0"},
        {"gemma4", NULL, "<|tool_call>call:f{a:<|\"|><|\"<||\"|>x<|\"|>}<tool_call|>",
         "call0(f,)arguments0({\"a\": \"<|\\\"<||\\\"|>x\"})done0"},
        {"gemma4", NULL, "<|tool_call>call:f{true:None,12:{null:True}}<tool_call|>",
         "call0(f,)arguments0({\"true\": null, \"12\": {\"null\": true}})done0"},
        {"gemma4", NULL, "<|tool_call>call:f{a:1,}<tool_call|>",
         "call0(f,)arguments0({\"a\": 1, )withdrawn0text(<|tool_call>call:f{a:1,}<tool_call|>)"},
        {"gemma4", NULL, "<|tool_call>call:f{a:<|\"|>x",
         "call0(f,)arguments0({\"a\": \"x)withdrawn0text(<|tool_call>call:f{a:<|\"|>x)"},
        {"functiongemma", NULL,
         "<start_function_call>call:get_weather{location:<escape>San Francisco<escape>,unit:"
         "<escape>celsius<escape>,n:-1.5}<end_function_call><start_function_response>",
         "call0(get_weather,)arguments0({\"location\": \"San Francisco\", \"unit\": \"celsius\", "
         "\"n\": -1.5})done0"},
        {"functiongemma", NULL, "<start_function_call>call:f{a:1]<end_function_call>",
         "call0(f,)arguments0({\"a\": 1)withdrawn0text(<start_function_call>call:f{a:1]"
         "<end_function_call>)"},
    };
    CHECK(cases);
}

Test(answer, sections)
{
    static const struct answer_case cases[] = {
        {"deepseek-r1", B "Assistant" E "<think>\n",
         "why</think>" B "tool" U "calls" U "begin" E B "tool" U "call" U "begin" E "function" B
         "tool" U "sep" E "f\n```json\n{\"a\": 1}\n```" B "tool" U "call" U "end" E "\n" B "tool" U
         "call" U "begin" E "function" B "tool" U "sep" E "g\n```json\n{}\n```" B "tool" U "call" U
         "end" E B "tool" U "calls" U "end" E,
         "reasoning(why)call0(f,)arguments0({\"a\": 1})done0call1(g,)arguments1({})done1"},
        {"deepseek-v3.1", B "Assistant" E "</think>",
         "Yes" B "tool" U "calls" U "begin" E B "tool" U "call" U "begin" E "f" B "tool" U "sep" E
         "{}" B "tool" U "call" U "end" E B "tool" U "calls" U "end" E,
         "text(Yes)call0(f,)arguments0({})done0"},
        {"deepseek-v3.1", NULL,
         B "tool" U "call" U "begin" E "f" B "tool" U "sep" E "\n  {}" B "tool" U "call" U "end" E,
         "call0(f,)arguments0({})done0"},
        {"harmony", "<|start|>assistant",
         "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.f "
         "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
         "reasoning(hm)call0(f,)arguments0({\"a\": 1})done0"},
        {"harmony", "<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>{}",
         "call0(f,)arguments0({})done0"},
        {"harmony", NULL,
         "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>"
         "I look.<|end|>"
         "<|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>",
         "reasoning(a)text(I look.)call0(f,)arguments0({})done0"},
        {"harmony", NULL, "<|channel|>final<|message|>Hi to=x<|return|>", "text(Hi to=x)"},
        {"harmony", "<|start|>assistant<|channel|>analysis<|message|>",
         "a<|end|><|start|>assistant<|channel|>final<|message|>b", "reasoning(a)text(b)"},
    };
    CHECK(cases);
}

Test(answer, format_of_a_template)
{
    static const char *const cases[][2] = {
        {"<tool_call>\\n{\"name\": <function-name>", "hermes"},
        {"<tool_call>\n<function=x>\n<parameter=a>", "qwen3-coder"},
        {"<tool_call>{function-name}\n<arg_key>", "glm"},
        {"<seed:tool_call>\n<function=x>\n<parameter=a>", "seed-oss"},
        {"<|tool_call:begin|><tool-call-id><|tool_call:name|>", "solar-open"},
        {"':opensource' '<tool_call{}>' '<tool_sep{}>' '<arg_key{}>'", "hy3"},
        {"<minimax:tool_call>\n<invoke name=\"x\">", "minimax-m2"},
        {"'<|tool|>' + tools + '<|/tool|>'", "phi4-mini"},
        {"<|start_header_id|>ipython<|end_header_id|> tools", "llama3"},
        {"<|start_header_id|> <function=example_function_name>", "functionary-v3.1"},
        {"{{ '>>>all\\n' }}", "functionary-v3.2"},
        {"[TOOL_CALLS]", "mistral"},
        {"[TOOL_CALLS] [ARGS]", "mistral-args"},
        {"<|channel|>analysis", "harmony"},
        {B "tool" U "calls" U "begin" E, "deepseek-v3.1"},
        {B "tool" U "calls" U "begin" E "```json", "deepseek-r1"},
        {"<|START_ACTION|>", "command-r7b"},
        {"<|tool_calls_section_begin|>", "kimi-k2"},
        {"<" D "function_calls>", "deepseek-v3.2"},
        {"List of tools: <|tool_list_start|>[", "lfm2-tools"},
        {"\"List of tools: [\" tools", "lfm2-tools"},
        {"<|tools_prefix|>", "apertus-tools"},
        {"<TOOLCALL>", "nemotron-tools"},
        {"within <tool_call></tool_call> XML tags: <tool_calls>[", "jamba-tools"},
        {"function_call=\"<|function_call|>\" <|role_sep|> `function call`", "gigachat3.1"},
        {"role_sep=\"<|role_sep|>\\n\" 'role': 'function call'", "gigachat3"},
        {"<tool_calls>", "jamba-tools"},
        {"<answer> <tool_calls>", "hunyuan"},
        {"<beginning_of_sentence>system <tool_calls>", "minimax-m1"},
        {"'<|tool_call>call:' '<|\"|>'", "gemma4"},
        {"<start_function_call>call:{{ name }}{", "functiongemma"},
        {"<|header_start|>ipython [func_name1(param1=value1)]", "llama4-pythonic"},
        {"<function_calls>", "olmo3"},
        {"<|action_start|><|plugin|>", "internlm2-tools"},
        {"{% if tools %}", "json"},
        {"{{ messages }}", "plain"},
        {"", "plain"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(gr_answer_format(cases[i][0], strlen(cases[i][0])), cases[i][1], "%s",
                         cases[i][0]);
}
