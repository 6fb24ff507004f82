#include "base/cpus.h"

#include "support/tree.h"

static const char *again(const char *text)
{
    static char out[256];
    struct gr_cpus s;
    return gr_cpus_parse(&s, text) ? gr_cpus_text(&s, out, sizeof out) : "bad";
}

Test(cpus, lists)
{
    static const struct {
        const char *text, *want;
    } of[] = {{"0-3,8", "0-3,8"},
              {"", ""},
              {"\n", ""},
              {" 5 \n", "5"},
              {"3,1,2,0", "0-3"},
              {"0xF0", "4-7"},
              {"0xF0,0-1", "0-1,4-7"},
              {"0X1ffff", "0-16"},
              {"1023", "1023"},
              {"0-0", "0"},
              {"1024", "bad"},
              {"0-1024", "bad"},
              {"3-1", "bad"},
              {"-1", "bad"},
              {"1-", "bad"},
              {"1,", "bad"},
              {",1", "bad"},
              {"1,,2", "bad"},
              {"0x", "bad"},
              {"0xg", "bad"},
              {"1 2", "bad"},
              {"99999999999999999999", "bad"},
              {"a", "bad"},
              {"0x8000000000000000000000000000000001", "0,135"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        cr_expect_str_eq(again(of[i].text), of[i].want, "%s: %s", of[i].text, again(of[i].text));
}

/* A mask longer than there are processors, in its zeros only; and a text that is cut. */
Test(cpus, long_texts)
{
    char mask[2000] = "0x", text[40];
    struct gr_cpus s;
    memset(mask + 2, '0', 1500);
    strcpy(mask + 1502, "3");
    cr_assert(gr_cpus_parse(&s, mask));
    cr_expect_eq(gr_cpus_count(&s), 2);
    mask[2] = '1';
    cr_expect(!gr_cpus_parse(&s, mask));
    memset(&s, 0x55, sizeof s);
    gr_cpus_text(&s, text, sizeof text);
    cr_expect(strstr(text, ",.."), "%s", text);
    cr_expect_eq(gr_cpus_count(&s), GR_CPUS_MAX / 2);
    cr_expect_eq(gr_cpus_at(&s, 3), 6);
    cr_expect_eq(gr_cpus_at(&s, GR_CPUS_MAX / 2), -1);
}

/* 1, 2, 4 and 8 nodes of three processors, their numbers with holes. */
Test(cpus, nodes)
{
    for (int n = 1; n <= 8; n *= 2) {
        struct tree t;
        struct gr_nodes nodes;
        char why[256], list[64] = "", cpus[32];
        tree_init(&t);
        tree_put(&t, "/sys/devices/system/cpu/online", "0-63\n");
        for (int i = 0; i < n; i++) {
            snprintf(list + strlen(list), 8, i ? ",%d" : "%d", 2 * i);
            snprintf(cpus, sizeof cpus, "%d,%d-%d\n", i, 20 + 2 * i, 21 + 2 * i);
            tree_node(&t, 2 * i, cpus, 1000, "10");
        }
        tree_put(&t, "/sys/devices/system/node/online", list);
        cr_assert(gr_nodes_read(&nodes, t.root, why, sizeof why), "%s", why);
        cr_assert_eq(nodes.n, n);
        for (int i = 0; i < n; i++) {
            cr_expect_eq(nodes.node[i].id, 2 * i);
            cr_expect_eq(nodes.node[i].memory, 2 * i);
            cr_expect_eq(gr_cpus_count(&nodes.node[i].cpus), 3);
            cr_expect(gr_cpus_has(&nodes.node[i].cpus, 21 + 2 * i));
        }
        tree_fini(&t);
    }
}

/* Processors that are switched off; a node of such only, one of memory only, and one without
 * memory, which takes the nearest that has some. */
Test(cpus, odd_nodes)
{
    struct tree t;
    struct gr_nodes nodes;
    char why[256];
    tree_init(&t);
    tree_put(&t, "/sys/devices/system/cpu/online", "0,2-5\n");
    tree_put(&t, "/sys/devices/system/node/online", "0-4\n");
    tree_node(&t, 0, "0-1\n", 1000, "10 20 30 40 50\n");
    tree_node(&t, 1, "1\n", 1000, "20 10 20 20 20\n");
    tree_node(&t, 2, "2-3\n", 0, "40 30 10 20 15\n");
    tree_node(&t, 3, "\n", 1000, "40 20 20 10 20\n");
    tree_node(&t, 4, "4-5\n", 0, "x");
    cr_assert(gr_nodes_read(&nodes, t.root, why, sizeof why), "%s", why);
    cr_assert_eq(nodes.n, 3);
    cr_expect_eq(gr_cpus_count(&nodes.node[0].cpus), 1);
    cr_expect_eq(nodes.node[1].id, 2);
    cr_expect_eq(nodes.node[1].memory, 3);
    cr_expect_eq(nodes.node[2].memory, 0, "distances that cannot be read: the first one");
    tree_fini(&t);
}

/* No tree, no list, and lists that are none: one node with all there is, and why. */
Test(cpus, bad_nodes)
{
    static const char *const bad[] = {NULL, "0-", "9999999", "node0", "0-1\n1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int where = 0; where < 2; where++) {
            struct tree t;
            struct gr_nodes nodes;
            char why[256] = "";
            tree_init(&t);
            tree_put(&t, "/sys/devices/system/cpu/online", "0-1\n");
            tree_node(&t, 0, "0\n", 1000, "10 20");
            tree_node(&t, 1, where && bad[i] ? bad[i] : "1\n", 1000, "20 10");
            if (bad[i])
                tree_put(&t, "/sys/devices/system/node/online", where ? "0-1\n" : bad[i]);
            cr_expect(!gr_nodes_read(&nodes, t.root, why, sizeof why));
            cr_expect(strstr(why, "no list of"), "%s", why);
            cr_expect_eq(nodes.n, 1);
            cr_expect_eq(gr_cpus_count(&nodes.node[0].cpus), 2);
            tree_fini(&t);
        }
}

static int quota(const char *group, const char *path, const char *text, const char *path2,
                 const char *text2)
{
    struct tree t;
    tree_init(&t);
    tree_put(&t, "/proc/self/cgroup", group);
    tree_put(&t, path, text);
    if (path2)
        tree_put(&t, path2, text2);
    int n = gr_cpus_quota(t.root);
    tree_fini(&t);
    return n;
}

Test(cpus, quotas)
{
    static const char outer[] = "/sys/fs/cgroup/a/cpu.max", inner[] = "/sys/fs/cgroup/a/b/cpu.max",
                      us[] = "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us",
                      period[] = "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us";
    cr_expect_eq(quota("0::/a/b\n", inner, "250000 100000\n", NULL, NULL), 3);
    cr_expect_eq(quota("0::/a/b\n", inner, "max 100000\n", outer, "100000 100000\n"), 1);
    cr_expect_eq(quota("0::/a/b\n", inner, "100000 100000\n", outer, "900000 100000\n"), 1);
    cr_expect_eq(quota("0::/gone\n", "/sys/fs/cgroup/cpu.max", "400000 100000", NULL, NULL), 4);
    cr_expect_eq(quota("0::/a/b\n", inner, "max 100000\n", NULL, NULL), 0);
    cr_expect_eq(quota("4:cpu,cpuacct:/x\n0::/\n", us, "150000\n", period, "100000\n"), 2);
    cr_expect_eq(quota("4:memory:/x\n", us, "150000\n", period, "100000\n"), 0);
    cr_expect_eq(quota("1:cpu:/x\n", us, "-1\n", period, "100000\n"), 0);
    cr_expect_eq(quota("1:cpu:/x\n", us, "100\n", period, "0\n"), 0);
    cr_expect_eq(quota("nonsense\n\n::\n", inner, "1 0", outer, ""), 0);
    cr_expect_eq(gr_cpus_quota("/nowhere"), 0);
}
