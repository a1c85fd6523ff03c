"""Popular settings of servers, with the kind of value that people give them."""

TOKEN = "q8Zt4LkX0bVn7RwY2mHs"
HEX = "1429989fe8ac4effbc8f57f56486db54"

SECRET = f"""
PGPASSWORD=S3cret9x | MYSQL_PWD=S3cret9x | MYSQLPASSWORD=S3cret9x | MYSQL_ROOT_PASSWORD=r00t-pw
DBPASSWORD=S3cret9x | DB_PASSWORD=admin123 | DB_PASS=admin123 | DBPASS=S3cret9x
SMTPPASS=S3cret9x | SMTP_PASS=admin123 | MAILPASSWORD=S3cret9x
EMAIL_HOST_PASSWORD=abcd-efgh-ijkl1 | REDISPASSWORD=S3cret9x | REDIS_PASSWORD=hunter22
REDISCLI_AUTH=f00-Bar+9 | MONGO_INITDB_ROOT_PASSWORD=hunter22 | POSTGRES_PASSWORD=p0stgr3s!
SQLPASSWORD=S3cret9x | FTPPASS=S3cret9x | IMAP_PASS=word1word2 | NEO4J_PASSWORD=neo4j-pw1
SNOWFLAKE_PASSWORD=Sn0w-fl4ke | ELASTIC_PASSWORD=el4stic+x | GITHUB_TOKEN=ghp_{"aB3d" * 9}
GITHUB_PERSONAL_ACCESS_TOKEN=github_pat_{"aB3d" * 9} | GITLAB_TOKEN=glpat-aB3dE5gH7jK9mN1pQ3rS
GITLAB_PERSONAL_ACCESS_TOKEN=glpat-aB3dE5gH7jK9mN1pQ3rS | OPENAI_API_KEY=sk-proj-{"aB3d" * 9}
ANTHROPIC_API_KEY=sk-ant-{"aB3d" * 9} | GOOGLE_API_KEY=AIza{"aB3d" * 9}
GEMINI_API_KEY=AIza{"aB3d" * 9} | MISTRAL_API_KEY={TOKEN} | GROQ_API_KEY=gsk_{"aB3d" * 9}
HF_TOKEN=hf_{"aB3d" * 9} | REPLICATE_API_TOKEN=r8_{TOKEN} | SLACK_BOT_TOKEN=xoxb-12345-67890-abc
NOTION_TOKEN=ntn_{"aB3d" * 9} | NOTION_API_KEY=secret_{"aB3d" * 9}
LINEAR_API_KEY=lin_api_{"aB3d" * 9} | STRIPE_SECRET_KEY=sk_live_{"aB3d" * 6}
STRIPE_WEBHOOK_SECRET=whsec_{"aB3d" * 6} | BRAVE_API_KEY=BSA{TOKEN}
TAVILY_API_KEY=tvly-{"aB3d" * 6} | EXA_API_KEY=550e8400-e29b-41d4-a716-446655440000
FIRECRAWL_API_KEY=fc-{HEX} | CONTEXT7_API_KEY=ctx7sk-{TOKEN}
AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
AWS_SESSION_TOKEN=IQoJb3JpZ2luX2VjEJr9 | AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE
AZURE_CLIENT_SECRET=aB3~dE5gH7.jK9mN | CLOUDFLARE_API_TOKEN={TOKEN}
DIGITALOCEAN_ACCESS_TOKEN=dop_v1_{HEX} | VERCEL_TOKEN={TOKEN} | SENTRY_AUTH_TOKEN=sntrys_{TOKEN}
SONAR_TOKEN=squ_{HEX} | JIRA_API_TOKEN=ATATT3xFfGF0{TOKEN}
CONFLUENCE_API_TOKEN=ATATT3xFfGF0{TOKEN} | TWILIO_AUTH_TOKEN={HEX}
SENDGRID_API_KEY=SG.{TOKEN}.{TOKEN} | DJANGO_SECRET_KEY=django-insecure-x9+q
SECRET_KEY_BASE={HEX} | JWT_SECRET=change-me-9x! | ENCRYPTION_KEY={TOKEN}
NEXTAUTH_SECRET={TOKEN} | SESSION_SECRET=keyboard cat and mouse | RAILS_MASTER_KEY={HEX}
PASSPHRASE=correct horse battery staple | SSH_PASSPHRASE=kA9-x2!mm | NPM_TOKEN=npm_{"aB3d" * 9}
PYPI_TOKEN=pypi-{"aB3d" * 9} | DOCKER_PASSWORD=dckr_pat_{TOKEN}
TELEGRAM_BOT_TOKEN=123456789:AAH{TOKEN} | DISCORD_TOKEN=MTIz.{TOKEN}.{TOKEN}
SUPABASE_SERVICE_ROLE_KEY=sbp_{TOKEN} | FIGMA_API_KEY=figd_{"aB3d" * 9}
AIRTABLE_API_KEY=pat{TOKEN} | DD_API_KEY={HEX} | DD_APP_KEY={HEX} | QDRANT_API_KEY={TOKEN}
DIRENV_DIFF=eJzUkl-PmkAUxb_LfUan_i== | __MISE_DIFF=eAFrXpyfk9KwOC-1vGFJ
X_SIGNATURE={TOKEN} | SENTRY_DSN=x9+q/2-mm!kk
"""

PUBLIC = f"""
SONAR_PROJECT_KEY=acme-shop-backend | JIRA_PROJECT_KEY=PLATFORM2
PROJECT_KEY=acme_web_frontend_v2 | POSTHOG_PROJECT_KEY={TOKEN}
PARTITION_KEY=customer-region-2024 | DYNAMODB_SORT_KEY=created_at_of_order
PRIMARY_KEY=order_item_number1 | SSH_PUBLIC_KEY=ssh-ed25519 AAAAC3Nza me
STRIPE_PUBLISHABLE_KEY={TOKEN} | CACHE_KEY=user-profile-v2 | ROUTING_KEY=orders.created.v1
AWS_KEY=production-main-2 | REDIS_PASSWORD=redis:6379 | DB_PASSWORD=postgres:5432
OPENAI_API_KEY=sk-no-key-required | OPENAI_API_KEY=not-needed | OPENAI_API_KEY=no-key-needed
OPENAI_API_KEY=sk-not-needed | OPENAI_API_KEY=ollama | OPENAI_API_KEY=lm-studio
OPENAI_API_KEY=EMPTY | OPENAI_API_KEY=dummy-key | OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxx
OPENAI_API_KEY=your-openai-api-key-here | GITHUB_TOKEN=<your-github-token>
GITHUB_TOKEN=${{GITHUB_TOKEN}} | GITHUB_TOKEN={{{{ github.token }}}} | API_TOKEN=placeholder
API_KEY=YOUR_API_KEY | API_KEY=changeme | PASSWORD=change-me | PASSWORD=********
PASSWORD=xxxxxxxx | PASSWORD=password | DB_PASSWORD=postgres | MINIO_ROOT_PASSWORD=minioadmin
PGPASSFILE=/home/ann/.pgpass | PGPASSFILE=~/.pgpass | PGUSER=postgres | PGHOST=db.internal.corp
PGDATABASE=shop_2024 | NOTION_PAGE={HEX} | NOTION_DATABASE={HEX} | NOTION_PAGE_ID={HEX}
CONFLUENCE_PAGE={HEX} | SLACK_CHANNEL=C0123456789ABCDEFGHIJ
TRELLO_BOARD=5f3a9b2c8d7e6f1a0b4c3d2e | CLICKUP_LIST={HEX} | ASANA_WORKSPACE={HEX}
GCP_PROJECT=acme-prod-123456 | S3_BUCKET=acme-prod-logs-eu-central-1 | AWS_PROFILE=production
AWS_REGION=eu-central-1 | AZURE_TENANT_ID=550e8400-e29b-41d4-a716-446655440000
CLOUDFLARE_ACCOUNT={HEX} | GOOGLE_APPLICATION_CREDENTIALS=/home/ann/key.json
API_TOKEN_FILE=/run/secrets/token-1 | TOKEN_LIMIT=128000tokens | MAX_TOKENS=4096
NEXT_PAGE_TOKEN_NAME=next_page_v2 | TOKENIZERS_PARALLELISM=false | PWD=/home/ann/src
OLDPWD=/home/ann/work2 | SSH_AUTH_SOCK=/tmp/ssh-x1/agent.12 | XDG_SESSION_TYPE=wayland
DESKTOP_SESSION=gnome-classic-3 | GDMSESSION=ubuntu-xorg-2204 | AUTH=basic-realm-2 | USE_AUTH=true
PROXY_BYPASS=localhost,10.0.0.1 | NO_PROXY_BYPASS=intranet.corp.9 | COMPASS=north-east-12
LOG_LEVEL=debug | NODE_ENV=production | GIT_COMMIT={HEX} | IMAGE_DIGEST={HEX}
MODEL=gpt-4o-2024-08-06 | EMBEDDING_MODEL=text-embedding-3-large
KEYBOARD_LAYOUT=de-latin1-nodeadkeys | DIRENV_FILE=/home/ann/src/.envrc
MONKEY=banana-split-42 | TURKEY=istanbul-2024
"""


def lines(table: str) -> list[tuple[str, str]]:
    """Return the names and values in one of the tables."""
    found = (row.partition("=") for line in table.split("\n") if line for row in line.split(" | "))
    return [(name, value) for name, _, value in found]
