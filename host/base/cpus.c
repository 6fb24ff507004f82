#include "base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int gr_cpus_count(const struct gr_cpus *s)
{
    int n = 0;
    for (int i = 0; i < GR_CPUS_MAX / 64; i++)
        n += __builtin_popcountll(s->bits[i]);
    return n;
}

int gr_cpus_at(const struct gr_cpus *s, int k)
{
    for (int cpu = 0; cpu < GR_CPUS_MAX; cpu++)
        if (gr_cpus_has(s, cpu) && k-- == 0)
            return cpu;
    return -1;
}

void gr_cpus_and(struct gr_cpus *s, const struct gr_cpus *other)
{
    for (int i = 0; i < GR_CPUS_MAX / 64; i++)
        s->bits[i] &= other->bits[i];
}

/* ---- texts ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Parses a number below GR_CPUS_MAX at *p and advances *p; -1: there is none. */
static int number(const char **p)
{
    int v = 0;
    const char *begin = *p;
    while (**p >= '0' && **p <= '9' && v < GR_CPUS_MAX)
        v = 10 * v + *(*p)++ - '0';
    return *p > begin && v < GR_CPUS_MAX ? v : -1;
}

static bool parse_range(struct gr_cpus *out, const char **p)
{
    int lo = number(p), hi = lo;
    if (lo >= 0 && **p == '-') {
        ++*p;
        hi = number(p);
    }
    for (int cpu = lo; lo >= 0 && cpu <= hi; cpu++)
        gr_cpus_add(out, cpu);
    return lo >= 0 && hi >= lo;
}

/* Parses the digits after "0x" and advances *p. The last digit holds processors 0 to 3. */
static bool parse_mask(struct gr_cpus *out, const char **p)
{
    size_t n = 0;
    while (digit_of((*p)[n]) >= 0)
        n++;
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 4; bit++)
            if (digit_of((*p)[n - 1 - i]) >> bit & 1) {
                if (4 * i + (size_t)bit >= GR_CPUS_MAX)
                    return false;
                gr_cpus_add(out, (int)(4 * i) + bit);
            }
    *p += n;
    return n > 0;
}

bool gr_cpus_parse(struct gr_cpus *out, const char *text)
{
    const char *p = text;
    *out = (struct gr_cpus){0};
    while (is_space(*p))
        p++;
    for (bool more = *p; more; more = *p == ',') {
        p += *p == ',' && p > text;
        bool mask = p[0] == '0' && (p[1] == 'x' || p[1] == 'X');
        p += mask ? 2 : 0;
        if (!(mask ? parse_mask(out, &p) : parse_range(out, &p)))
            return false;
    }
    while (is_space(*p))
        p++;
    return !*p;
}

const char *gr_cpus_text(const struct gr_cpus *s, char *text, size_t n)
{
    size_t at = 0;
    text[0] = '\0';
    for (int lo = 0, hi; lo < GR_CPUS_MAX; lo = hi + 1) {
        hi = lo;
        if (!gr_cpus_has(s, lo))
            continue;
        while (hi + 1 < GR_CPUS_MAX && gr_cpus_has(s, hi + 1))
            hi++;
        if (at + 16 > n) { /* room for ",1023-1023" and ",.." */
            snprintf(text + at, n - at, "%s", at + 4 <= n ? ",.." : "");
            return text;
        }
        at += (size_t)snprintf(text + at, n - at, hi > lo ? "%s%d-%d" : "%s%d", at ? "," : "", lo,
                               hi);
    }
    return text;
}

/* ---- the calling thread ---- */

bool gr_cpus_allowed(struct gr_cpus *out)
{
    *out = (struct gr_cpus){0};
    return sched_getaffinity(0, sizeof *out, (cpu_set_t *)(void *)out) == 0;
}

bool gr_cpus_bound(void)
{
    struct gr_cpus set;
    return gr_cpus_allowed(&set) && gr_cpus_count(&set) < sysconf(_SC_NPROCESSORS_ONLN);
}

bool gr_cpus_run_on(const struct gr_cpus *s)
{
    return sched_setaffinity(0, sizeof *s, (const cpu_set_t *)(const void *)s) == 0;
}

/* ---- the machine ---- */

/* Reads the first n - 1 bytes of a file, zero-terminated. False: no file, or it has a zero byte. */
static bool read_text(const char *root, const char *path, char *text, size_t n)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return false;
    FILE *f = fopen(full, "re");
    size_t got = f ? fread(text, 1, n - 1, f) : 0;
    text[got] = '\0';
    if (f)
        fclose(f);
    return f && strlen(text) == got;
}

static bool read_cpus(const char *root, const char *path, struct gr_cpus *out)
{
    char text[8192];
    return read_text(root, path, text, sizeof text) && gr_cpus_parse(out, text);
}

/* Returns the memory of a node in kilobytes; 0: none, or unknown. */
static unsigned long long memory_of(const char *root, int id)
{
    char path[96], text[4096];
    unsigned long long kb = 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", id);
    const char *line = read_text(root, path, text, sizeof text) ? strstr(text, "MemTotal:") : NULL;
    if (line)
        kb = strtoull(line + strlen("MemTotal:"), NULL, 10);
    return kb;
}

/* Returns the nearest node that has memory, by the distances listed for node `id`: one for each
 * online node, in ascending order. */
static int nearest(const char *root, int id, const struct gr_cpus *online,
                   const struct gr_cpus *memory)
{
    char path[96], text[4096], *p = text;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/distance", id);
    if (!read_text(root, path, text, sizeof text))
        text[0] = '\0';
    int best = gr_cpus_at(memory, 0);
    long least = -1;
    for (int k = 0, other; (other = gr_cpus_at(online, k)) >= 0; k++) {
        char *end;
        long distance = strtol(p, &end, 10);
        if (end == p)
            break;
        if (gr_cpus_has(memory, other) && (least < 0 || distance < least))
            best = other, least = distance;
        p = end;
    }
    return best;
}

static bool one_node(struct gr_nodes *out, const struct gr_cpus *online)
{
    *out = (struct gr_nodes){.n = 1};
    out->node[0].cpus = *online;
    return false;
}

bool gr_nodes_read(struct gr_nodes *out, const char *root, char *why, size_t n)
{
    struct gr_cpus online, nodes, memory = {0};
    *out = (struct gr_nodes){0};
    if (!read_cpus(root, "/sys/devices/system/cpu/online", &online) || !gr_cpus_count(&online))
        memset(&online, 0xff, sizeof online);
    if (!read_cpus(root, "/sys/devices/system/node/online", &nodes)) {
        snprintf(why, n, "/sys/devices/system/node/online: no list of nodes");
        return one_node(out, &online);
    }
    for (int k = 0, id; (id = gr_cpus_at(&nodes, k)) >= 0; k++)
        if (memory_of(root, id))
            gr_cpus_add(&memory, id);
    for (int k = 0, id; (id = gr_cpus_at(&nodes, k)) >= 0 && out->n < GR_NODES_MAX; k++) {
        char path[96];
        struct gr_cpus *cpus = &out->node[out->n].cpus;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", id);
        if (!read_cpus(root, path, cpus)) {
            snprintf(why, n, "%s: no list of processors", path);
            return one_node(out, &online);
        }
        gr_cpus_and(cpus, &online);
        if (!gr_cpus_count(cpus))
            continue;
        out->node[out->n].id = id;
        out->node[out->n].memory = gr_cpus_has(&memory, id) || !gr_cpus_count(&memory)
                                       ? id
                                       : nearest(root, id, &nodes, &memory);
        out->n++;
    }
    if (out->n)
        return true;
    snprintf(why, n, "/sys/devices/system/node: no node has processors");
    return one_node(out, &online);
}

/* ---- control groups ---- */

/* Returns quota / period in processors, rounded up; 0: no limit ("max", -1) or implausible. */
static int whole(long long quota, long long period)
{
    return quota <= 0 || period <= 0 || quota / period >= GR_CPUS_MAX
               ? 0
               : (int)(quota / period + (quota % period != 0));
}

static int quota_v2(const char *root, const char *folder)
{
    char path[768], text[128], *end;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", folder);
    if (!read_text(root, path, text, sizeof text))
        return 0;
    long long quota = strtoll(text, &end, 10);
    return end == text ? 0 : whole(quota, strtoll(end, NULL, 10));
}

static int quota_v1(const char *root, const char *folder)
{
    char path[768], text[128];
    snprintf(path, sizeof path, "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", folder);
    if (!read_text(root, path, text, sizeof text))
        return 0;
    long long quota = strtoll(text, NULL, 10);
    snprintf(path, sizeof path, "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", folder);
    return read_text(root, path, text, sizeof text) ? whole(quota, strtoll(text, NULL, 10)) : 0;
}

/* Returns the lowest quota of a group and its ancestors; 0: none. In a container the path is often
 * the host's, and only the root folder exists. */
static int least_quota(const char *root, char *folder, int (*of)(const char *, const char *))
{
    int least = of(root, "");
    for (char *end; *folder; *end = '\0') {
        int n = of(root, folder);
        least = n && (!least || n < least) ? n : least;
        end = strrchr(folder, '/');
        if (!end)
            break;
    }
    return least;
}

/* Lines of /proc/self/cgroup: "0::/path" (cgroup v2), "4:cpu,cpuacct:/path" (v1). */
int gr_cpus_quota(const char *root)
{
    char text[8192], *rest = text;
    int least = 0;
    if (!read_text(root, "/proc/self/cgroup", text, sizeof text))
        return 0;
    for (char *line; (line = strsep(&rest, "\n"));) {
        strsep(&line, ":");
        char *of = strsep(&line, ":");
        if (!of || !line || strlen(line) > 512)
            continue;
        int n = !*of ? least_quota(root, line, quota_v2)
                : !strcmp(of, "cpu") || !strncmp(of, "cpu,", 4) || strstr(of, ",cpu,") ||
                        (strlen(of) > 4 && !strcmp(of + strlen(of) - 4, ",cpu"))
                    ? least_quota(root, line, quota_v1)
                    : 0;
        least = n && (!least || n < least) ? n : least;
    }
    return least;
}
