/* Choice of a model's files by their names, and names that lead out of a folder. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/download/choose.h"
#include "tools/download/http.h"
#include "tools/download/hub.h"

#define NAMES(...)                                                                                 \
    (struct gr_names)                                                                              \
    {                                                                                              \
        (const char *[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)      \
    }

/* What llama.cpp's patterns "TAG[.-]" (any case) find in whole paths, in this order. */
Test(choose, by_tag)
{
    struct gr_names n =
        NAMES("README.md", "mmproj-a-Q4_K_M.gguf", "Q4_K_M-x/a-Q8_0.gguf",
              "a-q4_k_m-00002-of-00003.gguf", "a-q4_k_m-00001-of-00003.gguf", "a-UD-Q4_K_XL.gguf",
              "a-IQ4_NL.gguf", "mtp-a-Q5_0.gguf", "a.Q6_K.GGUF");
    cr_expect_eq(gr_choose_by_tag(n, ""), 2, "a folder's name counts");
    cr_expect_eq(gr_choose_by_tag(n, "q8_0"), 2);
    cr_expect_eq(gr_choose_by_tag(n, "Q4_K"), n.n, "Q4_K is not Q4_K_M");
    cr_expect_eq(gr_choose_by_tag(n, "Q4_K_XL"), 5);
    cr_expect_eq(gr_choose_by_tag(n, "UD-Q4_K_XL"), 5);
    cr_expect_eq(gr_choose_by_tag(n, "Q4_NL"), 6);
    cr_expect_eq(gr_choose_by_tag(n, "Q5_0"), n.n, "a draft is no model");
    cr_expect_eq(gr_choose_by_tag(n, "Q6_K"), n.n);
    cr_expect_eq(gr_choose_by_tag(n, ".*"), n.n, "no pattern");
    cr_expect_eq(gr_choose_by_tag(NAMES("a-BF16.gguf", "a-Q8_0.gguf"), ""), 1);
    cr_expect_eq(gr_choose_by_tag(NAMES("x.bin", "a-BF16.gguf", "a-Q2_K.gguf"), ""), 1);
    cr_expect_eq(gr_choose_by_tag(NAMES("x.bin"), ""), 1);
    cr_expect_eq(gr_choose_by_tag((struct gr_names){NULL, 0}, ""), 0);
    cr_expect_eq(gr_choose_by_name(n, "A.q6_k.gguf"), 8);
    cr_expect_eq(gr_choose_by_name(n, "a"), n.n);
}

Test(choose, parts)
{
    static size_t part[GR_MOST_PARTS];
    int count;
    struct gr_names n =
        NAMES("b-00001-of-00002.gguf", "a-00003-of-00003.gguf", "a-00001-of-00003.gguf",
              "a-00002-of-00003.gguf", "a-00001-of-00002.gguf", "x/a-00001-of-00003.gguf",
              "a-00001-of-01001.gguf", "one.gguf");
    cr_expect_eq(gr_choose_parts(n, 2, part, &count), 0);
    cr_expect(count == 3 && part[0] == 2 && part[1] == 3 && part[2] == 1);
    cr_expect_eq(gr_choose_parts(n, 1, part, &count), 0, "by its last part");
    cr_expect(count == 3 && part[0] == 2);
    cr_expect_eq(gr_choose_parts(n, 0, part, &count), 2, "part 2 is missing");
    cr_expect_eq(gr_choose_parts(n, 5, part, &count), 2, "other folders are other models");
    cr_expect_eq(gr_choose_parts(n, 6, part, &count), -1);
    cr_expect_eq(gr_choose_parts(n, 7, part, &count), 0);
    cr_expect(count == 1 && part[0] == 7);
    struct gr_part_name name;
    cr_expect(gr_part_name("a-00002-OF-00003.gguf", &name) && name.no == 2 && name.count == 3 &&
              name.prefix == 1);
    static const char *const none[] = {"a.gguf",
                                       "-00001-of-00002.gguf",
                                       "a-00003-of-00002.gguf",
                                       "a-00000-of-00002.gguf",
                                       "a-0001-of-00002.gguf",
                                       "a-00001-of-00002.bin",
                                       "a-00001_of-00002.gguf",
                                       "a-0x001-of-00002.gguf",
                                       ""};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_expect_not(gr_part_name(none[i], &name), "%s", none[i]);
}

Test(choose, tags)
{
    char tags[64];
    gr_list_tags(NAMES("a-Q8_0.gguf", "b.q4_k_m.gguf", "mmproj-F16.gguf",
                       "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf", "plain.gguf",
                       "x.bin", "a-Q8.gguf"),
                 tags, sizeof tags);
    cr_expect_str_eq(tags, "Q8_0, Q4_K_M, Q8");
    gr_list_tags(NAMES("a-BF16.gguf", "a-Q8_0.gguf", "a-Q4_K_M.gguf"), tags, 14);
    cr_expect_str_eq(tags, "BF16, Q8_0");
    cr_expect_str_eq(gr_find_projector(NAMES("a.gguf", "x/mmproj.gguf")), "x/mmproj.gguf");
    cr_expect_null(gr_find_projector(NAMES("a.gguf", "mmproj/b.gguf")));
}

Test(choose, names_of_repositories)
{
    static const char *const good[] = {"a/b", "ggml-org/gemma-3.1_it-GGUF", "A_/_b"},
                             *const wrong[] = {"",           "a",     "a/",    "/b",     "a/b/c",
                                               "a//b",       "../b",  "a/..",  "a--b/c", "a/.b",
                                               "a/b.",       "-a/b",  "a b/c", "a/b:c",  "a/b\n",
                                               "a/\xc3\xa9", "a/b?c", "a/b%2e"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_expect(gr_hub_is_repo(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect_not(gr_hub_is_repo(wrong[i]), "%s", wrong[i]);
}

Test(choose, paths)
{
    static const char *const good[] = {"a",   "a/b/c.gguf", "..a",       "a..",
                                       "...", "a/.b",       "\xc3\xa9 x"},
                             *const wrong[] = {"",     "/",    "/a",    "a/",     "a//b",   ".",
                                               "..",   "a/.",  "../a",  "a/..",   "a/../b", "./a",
                                               "a\\b", "a\nb", "a\x7f", "\x1b[2J"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_expect(gr_hub_is_safe(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_expect_not(gr_hub_is_safe(wrong[i]), "%s", wrong[i]);
    char name[400];
    memset(name, 'a', sizeof name);
    name[255] = 0;
    cr_expect(gr_hub_is_safe(name));
    name[255] = 'a', name[256] = 0;
    cr_expect_not(gr_hub_is_safe(name));
}

Test(choose, urls)
{
    static char url[GR_URL_MAX], path[4000];
    cr_assert(gr_hub_url("https://h", "a/b", "c", "x y/\xc3\xa9+%.gguf", url));
    cr_expect_str_eq(url, "https://h/a/b/resolve/c/x%20y/%C3%A9%2B%25.gguf");
    memset(path, ' ', sizeof path - 1);
    cr_expect_not(gr_hub_url("https://h", "a/b", "c", path, url), "it does not fit");
    char shown[64];
    cr_expect_str_eq(gr_http_shown("https://u:p@h:1/a/b?key=s#x", shown, sizeof shown),
                     "https://h:1/a/b");
    cr_expect_str_eq(gr_http_shown("https://h/a@b", shown, sizeof shown), "https://h/a@b");
    cr_expect_str_eq(gr_http_shown("https://h?x", shown, sizeof shown), "https://h");
}
