/* Made-up trees of /sys and /proc, for what reads them. */
#ifndef TESTS_SUPPORT_TREE_H
#define TESTS_SUPPORT_TREE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct tree {
    char root[64];
};

static inline void tree_init(struct tree *t)
{
    snprintf(t->root, sizeof t->root, "/tmp/gr_tree_XXXXXX");
    cr_assert(mkdtemp(t->root));
}

/* A file with its folders. */
static inline void tree_put(const struct tree *t, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", t->root, path);
    for (char *p = full + strlen(t->root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        (void)mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    cr_assert(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

/* A node with a list of processors and so many kilobytes. */
static inline void tree_node(const struct tree *t, int id, const char *cpus, int kb,
                             const char *distance)
{
    char path[96], text[96];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", id);
    tree_put(t, path, cpus);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", id);
    snprintf(text, sizeof text, "Node %d MemTotal: %d kB\nNode %d MemFree: 1 kB\n", id, kb, id);
    tree_put(t, path, text);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/distance", id);
    tree_put(t, path, distance);
}

static inline void tree_fini(struct tree *t)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", t->root);
    cr_assert_eq(system(command), 0);
}

#endif
