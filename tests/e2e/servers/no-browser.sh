#!/bin/sh
# In the place of Playwright's browser: does not start, BROWSER_SECS (0) seconds long. A tool that needs the browser runs that long, and fails.
sleep "${BROWSER_SECS:-0}"
exit 1
