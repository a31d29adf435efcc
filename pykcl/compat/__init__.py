"""What lets a team leave Java behind: its MultiLangDaemon, its kclpy programs and its .properties files, on pykcl.

May import every room but cli, local and testing; none of those below may import it.
"""
