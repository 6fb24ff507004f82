/* Topics of gpurun help. */
#ifndef GR_TOOLS_HELP_H
#define GR_TOOLS_HELP_H

/* Returns the i-th topic of gpurun help that is neither a command nor a flag; NULL past the last
 * one. */
const char *gr_help_topic(int i);

#endif
