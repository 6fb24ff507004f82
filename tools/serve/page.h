/* Files that a server has in it: its web page, which talks to the server's own routes, and their
 * description. */
#ifndef GR_TOOLS_PAGE_H
#define GR_TOOLS_PAGE_H

#include "http.h"

/* GET /. The browser runs the page's own script alone. */
gr_handler_fn gr_page;
/* GET /openapi.yaml. */
gr_handler_fn gr_openapi;

#endif
