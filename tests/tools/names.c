/* Names that are none of gpurun's: commands of other programs, and what is no model file. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tiny.h"

/* The gpurun command that does the work of another program's command. */
Test(names, commands_of_others)
{
    static const char *const answer[][2] = {
        {"cli", "gpurun run -m FILE -p TEXT"},
        {"batched-bench", "gpurun bench -m FILE -np 1,8"},
        {"fit-params", "gpurun fit -m FILE"},
        {"gguf-split", "gpurun merge"},
        {"show", "gpurun inspect MODEL.gguf"},
        {"create", "gpurun quantize IN.gguf OUT.gguf TYPE"},
        {"ps", "gpurun devices"},
    };
    for (size_t i = 0; i < sizeof answer / sizeof *answer; i++)
        expect_exit(GPURUN(NULL, answer[i][0], "x"), 2, answer[i][1]);
}

Test(names, no_model_files)
{
    char folder[] = "/tmp/gpurun-XXXXXX", config[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(config, sizeof config, "%s/config.json", folder);
    expect_exit(GPURUN(NULL, "-m", "", "-p", "a"), 2, "the model file's name is empty");
    expect_exit(GPURUN(NULL, "", "-p", "a"), 2, "the model file's name is empty");
    expect_exit(GPURUN(NULL, "inspect", ""), 2, "the model file's name is empty");
    expect_exit(GPURUN(NULL, "-m", "https://a.b/c.gguf", "-p", "a"), 3,
                "gpurun -mu 'https://a.b/c.gguf'");
    expect_exit(GPURUN(NULL, "bench", folder), 3, "is a folder, and a GGUF file is expected");
    fclose(fopen(config, "w"));
    expect_exit(GPURUN(NULL, "-m", folder, "-p", "a"), 3, "python3 scripts/convert /tmp/gpurun-");
    unlink(config);
    rmdir(folder);
}
