/* Files that a command will write. */
#ifndef GR_TOOLS_OUTPUTS_H
#define GR_TOOLS_OUTPUTS_H

struct gr_options;

/* Checks that each output file of the options can be written and is not another file of the
 * command. 0 or an exit code, after printing the error. */
int gr_outputs_check(const struct gr_options *o);

#endif
