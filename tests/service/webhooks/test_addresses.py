"""Which addresses webhooks may reach."""

import pytest

from service.webhooks.sending import AddressRefused, checked, is_public, read_url

INSIDE = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.100.100.200", "192.0.0.192"),
    *("169.254.169.254", "168.63.129.16", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1", "203.0.113.5"),
    *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "fe80::1", "fe80::1%eth0"),
    *("fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
    *("2002:7f00:1::1", "2002:a9fe:a9fe::", "2001::1", "2001:db8::1", "100::1"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_inside_is_refused_however_it_is_written(address):
    assert not is_public(address)
    with pytest.raises(AddressRefused, match="OBSCURA_WEBHOOKS_PRIVATE"):
        checked([address], private=False)
    assert checked([address], private=True) == [address]


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"])
def test_what_is_public_is_reached(address):
    assert is_public(address)
    assert checked([address], private=False) == [address]


def test_one_address_inside_is_enough_to_refuse_a_host():
    with pytest.raises(AddressRefused):
        checked(["8.8.8.8", "10.0.0.1"], private=False)


@pytest.mark.parametrize(
    "url",
    [
        *("http://hooks.example.org/", "ftp://hooks.example.org/", "hooks.example.org", "https://", "https:///x", ""),
        *("https://user:word@hooks.example.org/", "https://hooks.example.org/#part", "https://hooks.example.org/ x"),
        *("https://127.0.0.1/", "https://[::1]:8443/", "https://[::ffff:169.254.169.254]/", "https://10.0.0.1/"),
        *("https://hooks.example.org/\n", "https://hooks.example.org/" + "x" * 500, "https://[fe80::1%25eth0]/"),
    ],
)
def test_a_url_that_is_no_webhooks_is_refused(url):
    with pytest.raises(AddressRefused):
        read_url(url, private=False)


MALFORMED_HOSTS = [
    *("xn--", "xn--a", "a.xn--", "xn--ls8h.example", "xn--zzzzzz99999.org", "xn--zzzzzz99999.org:8443", "xn--.xn--"),
    *("a..b", ".a", "..", ".", "-a.example", "a-.example", "%00", "a%20b", "a%2eb", "*.example.org"),
    *("a,b", "a;b", "a'b", "[::1", "::1]", "[::zz]", "[]", "[v1.a]", "[1.2.3.4]", "[a]"),
    *("a" * 64 + ".example", ".".join(["a" * 60] * 5), "h.example#", "?x", "#x", "@h.example"),
    *("h.example:0", "h.example:65536", "h.example:-1", "h.example:a", "h.example:99999999999999999999"),
    *("h.example:443:443", ":443", "u@h.example", "u:w@h.example", ":@h.example", "@h.example"),
    "h.example\\@i.example",
    *("\u0661\u0662\u0667.0.0.1", "\u200d.example", "\u202eh.example", "h\x00.example", "h\ud800.example"),
    *("\u2603.net", "127.1", "0x7f.1", "2130706433", "0x7f000001", "1.2.3.4.5", "256.1.1.1", "1.2.3.4."),
]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("host", MALFORMED_HOSTS, ids=ascii)
def test_a_malformed_host_port_or_user_is_refused(host, private):
    for url in (f"https://{host}/", f"https://{host}", f"https://{host}/hook?token=a"):
        with pytest.raises(AddressRefused, match="A webhook's URL must look like"):
            read_url(url, private=private)


@pytest.mark.parametrize(
    "url",
    [
        *("https://faß.example/", "https://例え.jp/@team", "https://h.example?to=a@b", "https://h_1.example.:65535"),
        "https://EXAMPLE.org/a%20b",
    ],
)
def test_an_international_or_unusual_but_valid_url_is_accepted(url):
    assert read_url(url, private=False)[1].isascii()


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://hooks.example.org/obscura?token=a", "hooks.example.org", 443),
        ("https://hooks.example.org:8443", "hooks.example.org", 8443),
        ("https://[2606:4700:4700::1111]/", "2606:4700:4700::1111", 443),
        ("http://127.0.0.1:80/x", "127.0.0.1", 80),
    ],
)
def test_a_url_has_a_host_and_a_port(url, host, port):
    assert read_url(url, private=url.startswith("http:"))[1:] == (host, port)
