#!/bin/sh
set -e
# `remove` is Debian's word for the end, 0 that of RPM; an update is neither.
case "${1:-}" in
    remove | 0)
        if [ -d /run/systemd/system ]; then
            systemctl disable --now mcp-resume.service mcp-resume-stdio.service 'mcp-resume-balancer@*.service' || true
        fi
        ;;
esac
