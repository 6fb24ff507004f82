#include "choose.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define N_SUFFIX 5   /* ".gguf" */
#define N_NUMBERS 15 /* "-00001-of-00003" */

static const char *base_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

static bool is_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > N_SUFFIX && !strcmp(name + n - N_SUFFIX, ".gguf");
}

/* Models alone: not what goes with them. */
static bool is_model(const char *name)
{
    static const char *const others[] = {"mmproj",  "imatrix", "mtp-",
                                         "eagle3-", "dflash-", "dspark-"};
    bool is = is_gguf(name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        is &= !strstr(base_of(name), others[i]);
    return is;
}

static bool five_digits(const char *p, int *x)
{
    *x = 0;
    for (int i = 0; i < 5; i++) {
        if (!isdigit((unsigned char)p[i]))
            return false;
        *x = *x * 10 + (p[i] - '0');
    }
    return true;
}

bool gr_part_name(const char *name, struct gr_part_name *part)
{
    size_t n = strlen(name);
    if (!is_gguf(name) || n <= N_SUFFIX + N_NUMBERS)
        return false;
    part->prefix = n - N_SUFFIX - N_NUMBERS;
    const char *p = name + part->prefix;
    return p[0] == '-' && five_digits(p + 1, &part->no) && !strncasecmp(p + 6, "-of-", 4) &&
           five_digits(p + 10, &part->count) && part->no >= 1 && part->no <= part->count;
}

static bool is_first(const char *name)
{
    struct gr_part_name part;
    return !gr_part_name(name, &part) || part.no == 1;
}

static bool has_tag(const char *name, const char *tag)
{
    size_t n = strlen(tag);
    for (const char *p = strcasestr(name, tag); p; p = strcasestr(p + 1, tag))
        if (p[n] == '-' || p[n] == '.')
            return true;
    return false;
}

/* Returns the first model with the tag, or of any ("") */
static size_t find(struct gr_names names, const char *tag)
{
    size_t i = 0;
    while (i < names.n &&
           !(is_model(names.v[i]) && is_first(names.v[i]) && (!*tag || has_tag(names.v[i], tag))))
        i++;
    return i;
}

size_t gr_choose_by_tag(struct gr_names names, const char *tag)
{
    static const char *const usual[] = {"Q4_K_M", "Q8_0", ""};
    size_t found = names.n;
    if (*tag)
        return find(names, tag);
    for (size_t i = 0; i < sizeof usual / sizeof *usual && found == names.n; i++)
        found = find(names, usual[i]);
    return found;
}

size_t gr_choose_by_name(struct gr_names names, const char *name)
{
    size_t i = 0;
    while (i < names.n && strcasecmp(names.v[i], name) != 0)
        i++;
    return i;
}

int gr_choose_parts(struct gr_names names, size_t chosen, size_t part[GR_MOST_PARTS], int *n)
{
    struct gr_part_name own, other;
    *n = 1;
    part[0] = chosen;
    if (!gr_part_name(names.v[chosen], &own))
        return 0;
    if (own.count > GR_MOST_PARTS)
        return -1;
    *n = own.count;
    for (int k = 0; k < own.count; k++)
        part[k] = names.n;
    for (size_t i = 0; i < names.n; i++)
        if (gr_part_name(names.v[i], &other) && other.count == own.count &&
            other.prefix == own.prefix && !memcmp(names.v[i], names.v[chosen], own.prefix))
            part[other.no - 1] = i;
    for (int k = 0; k < own.count; k++)
        if (part[k] == names.n)
            return k + 1;
    return 0;
}

/* Finds the tag in a model's name, what stands behind the last "-" or ".": *n bytes; NULL: none. */
static const char *tag_of(const char *name, size_t *n)
{
    struct gr_part_name part;
    const char *base = base_of(name);
    size_t end = gr_part_name(base, &part) ? part.prefix : strlen(base) - N_SUFFIX, at = end;
    while (at > 0 && (isalnum((unsigned char)base[at - 1]) || base[at - 1] == '_'))
        at--;
    *n = end - at;
    return *n && at > 0 && strchr("-.", base[at - 1]) ? base + at : NULL;
}

/* Returns whether the list, "A, B", has the word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ' ') && (!p[n] || p[n] == ','))
            return true;
    return false;
}

void gr_list_tags(struct gr_names names, char *buf, size_t n)
{
    size_t at = 0;
    *buf = 0;
    for (size_t i = 0; i < names.n; i++) {
        char word[64];
        size_t n_tag = 0;
        const char *tag =
            is_model(names.v[i]) && is_first(names.v[i]) ? tag_of(names.v[i], &n_tag) : NULL;
        if (!tag || n_tag >= sizeof word)
            continue;
        for (size_t k = 0; k < n_tag; k++)
            word[k] = (char)toupper((unsigned char)tag[k]);
        word[n_tag] = 0;
        if (has_word(buf, word) || at + n_tag + 3 > n)
            continue;
        at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? ", " : "", word);
    }
}

const char *gr_find_projector(struct gr_names names)
{
    for (size_t i = 0; i < names.n; i++)
        if (is_gguf(names.v[i]) && strstr(base_of(names.v[i]), "mmproj"))
            return names.v[i];
    return NULL;
}
